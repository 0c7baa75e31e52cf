/* main.c - `mascon`: one row a command. Floor 8 (cli).
 *
 * Exit codes: 0 done, target reached and committed; 1 a bug of ours; 2 recipe or usage error,
 * nothing started; 3 this machine cannot; 4 verify found a difference; 75 orderly stop with a
 * complete checkpoint and progress: run me again; 76 failed or stopped without progress: a retry
 * may help; 77 a retry will not help.
 *
 * I1  What could not be written to stdout is never passed over: 76 if the command itself had
 *     succeeded. A reader that left (`| head -1`) has what it wanted: no message, the command's
 *     code.
 *
 * Environment read: MASCON_HOME, OMP_NUM_THREADS and SLURM_*; nothing else. */
#include "cli.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct command {
    const char *name, *summary; /* summary NULL: not for people */
    int (*run)(int argc, char **argv);
};
static const struct command commands[] = {
    {"check", "all errors of a recipe at once; nothing started", mc_cmd_check},
    {"explain", "every resolved value and where it came from", mc_cmd_explain},
    {"plan", "who holds what on any number of ranks, before a cluster is asked", mc_cmd_plan},
    {"train", "train on this machine; kill it, and resume exactly", mc_cmd_train},
    {"eval", "loss, perplexity, bits per byte of a checkpoint", mc_cmd_eval},
    {"generate", "text from a checkpoint", mc_cmd_generate},
    {"ckpt", "ls, show, verify, diff checkpoints; import a model", mc_cmd_ckpt},
    {"diff-run", "two runs: which op, parameter, rank and step differ first", mc_cmd_diff_run},
    {"compare", "two settings of the same work: time, memory, losses", mc_cmd_compare},
    {"trace", "a traced step as a timeline for a browser", mc_cmd_trace},
    {"data", "pack, train-tokenizer, inspect, verify: token files", mc_cmd_data},
    {"doc", "the reference of recipe keys and ops", mc_cmd_doc},
    {"version", "what this program is", mc_cmd_version},
    {"rank", NULL, mc_cmd_rank},
};
enum { NCOMMANDS = sizeof commands / sizeof *commands };

static void help(FILE *f)
{
    fprintf(f,
            "mascon %s - pretraining of language models; recipes and hooks in Lua\n\n"
            "usage: mascon COMMAND ...     mascon COMMAND --help\n\n",
            MC_VERSION);
    for (int i = 0; i < NCOMMANDS; i++)
        if (commands[i].summary)
            fprintf(f, "  %-9s %s\n", commands[i].name, commands[i].summary);
    fprintf(f, "\nexit codes: 0 done, 2 recipe or usage, 3 this machine, 4 difference found,\n"
               "            75 stopped in order, run me again, 76 failed, a retry may help,\n"
               "            77 a retry will not help, 1 a bug of mascon\n");
}

static int unknown(const char *word)
{
    const char *names[NCOMMANDS + 1];
    int n = 0;
    for (int i = 0; i < NCOMMANDS; i++)
        if (commands[i].summary)
            names[n++] = commands[i].name;
    names[n++] = "help";
    const char *near = mc_nearest(word, names, n);
    fprintf(stderr, "mascon: unknown command \"%.60s\"", word);
    if (near)
        fprintf(stderr, " (did you mean \"%s\"?)", near);
    fprintf(stderr, "; `mascon help` lists them\n");
    return 2;
}

/* I1 */
static int answered(int rc)
{
    int said = ferror(stdout), why = 0;
    if (fflush(stdout) != 0)
        why = errno;
    if (!said && why == 0)
        return rc;
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (why == EPIPE || (why == 0 && poll(&p, 1, 0) == 1 && (p.revents & POLLERR)))
        return rc;
    fprintf(stderr, "mascon: standard output: %s\n",
            why ? strerror(why) : "not all of the answer could be written");
    return rc == 0 ? 76 : rc;
}

static int command(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return 2;
    }
    const char *word = argv[1];
    if (!strcmp(word, "help") || !strcmp(word, "--help") || !strcmp(word, "-h")) {
        if (argc == 2) {
            help(stdout);
            return 0;
        }
        word = argv[2]; /* mascon help train */
        static char ask[] = "--help";
        char *one[] = {ask};
        for (int i = 0; i < NCOMMANDS; i++)
            if (!strcmp(commands[i].name, word))
                return commands[i].run(1, one);
        return unknown(word);
    }
    if (!strcmp(word, "--version")) {
        printf("mascon %s\n", MC_VERSION);
        return 0;
    }
    for (int i = 0; i < NCOMMANDS; i++)
        if (!strcmp(commands[i].name, word))
            return commands[i].run(argc - 2, argv + 2);
    return unknown(word);
}

int main(int argc, char **argv)
{
    mc_early_signals();
    signal(SIGXFSZ, SIG_IGN); /* a file too large for ulimit -f is an error like a full disk */
    mc_bus_install();
    signal(SIGPIPE, SIG_IGN); /* I1 */
    return answered(command(argc, argv));
}
