/* test_kern_width16.c - test_kern_width.c in bf16.
 * links: mc_kern
 */
#define WIDTH_IN_BF16
#include "test_kern_width.c"
