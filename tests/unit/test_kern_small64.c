/* test_kern_small64.c - test_kern_small.c in fp64.
 * links: mc_kern
 */
#define SMALL_IN_F64
#include "test_kern_small.c"
