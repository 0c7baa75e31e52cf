/* dir_help.h - a folder of a test's own under /tmp, and files in it. For tests/unit alone. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char dir[64];

static inline int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/mc-unit-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static inline int drop_dir(void **state)
{
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

static inline const char *in_dir(const char *name)
{
    static char p[8][1024];
    static int k;
    k = (k + 1) % 8;
    snprintf(p[k], sizeof p[k], "%s/%s", dir, name);
    return p[k];
}

static inline void write_bytes(const char *name, const void *b, size_t n)
{
    FILE *f = fopen(in_dir(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b, 1, n, f), n);
    fclose(f);
}
