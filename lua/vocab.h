/* vocab.h - what the recipe's tokenizer says of the model: its vocabulary and its EOS. */
#pragma once
#include "../core/recipe/recipe.h"
#include "../core/recipe/value.h"

/* data.tokenizer a tokenizer.json: it must be readable (a relative path from `dir`); model.vocab
 * and model.eos, where not given, are put into the tree with the file as their origin, before the
 * model is traced; a given vocab must hold every id. Problems are added. 0: no memory. */
int mc_vocab_settle(struct mc_values *pool, struct mc_value *root, const char *dir,
                    struct mc_problems *problems);
