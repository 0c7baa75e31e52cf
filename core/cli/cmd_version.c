/* cmd_version.c - `mascon version`: what this program is and what it computes with. */
#include "cli.h"
#include "../kern/kern.h"
#include <stdio.h>

static const char about[] = "Prints the version, the kernels' library and where home is.";

int mc_cmd_version(int argc, char **argv)
{
    int json = 0;
    const struct mc_arg arg[] = {{"--json", NULL, "answer in JSON", MC_ARG_FLAG, &json, 0, 0}};
    struct mc_args a = {
        .usage = "mascon version [--json]", .about = about, .arg = arg, .nargs = 1, .max_pos = 0};
    int rc = mc_args_parse(&a, argc, argv);
    if (rc != MC_ARGS_GO)
        return rc;
    char kern[128], home[1024] = "";
    struct mc_err err = {0};
    mc_status st = mc_home_find(home, &err);
    mc_kern_fingerprint(kern, sizeof kern);
    if (json) {
        struct mc_json j;
        mc_json_init_grow(&j);
        mc_json_open(&j, NULL, '{');
        mc_json_str(&j, "version", MC_VERSION);
        mc_json_str(&j, "kernels", kern);
        mc_json_str(&j, "home", st == MC_OK ? home : NULL);
        mc_json_open(&j, "devices", '[');
        mc_json_str(&j, NULL, "cpu");
        mc_json_close(&j, ']');
        mc_json_bool(&j, "slurm", 0);
        mc_json_close(&j, '}');
        mc_say_json(&j);
    } else {
        printf("mascon %s\nkernels %s\ndevices cpu\nhome %s\n", MC_VERSION, kern,
               st == MC_OK ? home : err.msg);
    }
    return 0;
}
