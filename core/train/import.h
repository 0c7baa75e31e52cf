/* import.h - the weights of a transformers model (safetensors) as the first checkpoint of a run.
 *
 * What does not fit is found before anything is written: names, shapes, config.json against the
 * recipe, then every value once. Afterwards the run is as any other before its first step. */
#pragma once
#include "train.h"

struct mc_import;
/* from: a *.safetensors file, an index, or a folder with one of them; config.json is read where it
 * lies beside. No data is read. What does not fit is added to `problems`, all of it: MC_E_RECIPE.
 */
mc_status mc_import_open(const struct mc_recipe *r, int threads, const char *from,
                         struct mc_problems *problems, struct mc_import **im, struct mc_err *err);
void mc_import_close(struct mc_import *im);
/* Reads every value: MC_E_FORMAT where one is not finite in the run's precision. */
mc_status mc_import_look(struct mc_import *im, struct mc_err *err);
const char *mc_import_family(const struct mc_import *im); /* "llama": of its names */
int mc_import_tensors(const struct mc_import *im);
/* Writes the checkpoint of step 0: these weights, a fresh optimizer, a fresh cursor. */
mc_status mc_import_save(struct mc_import *im, const struct mc_train_cfg *cfg,
                         struct mc_train_result *res, struct mc_err *err);
