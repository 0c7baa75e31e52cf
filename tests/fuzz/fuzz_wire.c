/* fuzz_wire.c - any bytes as a message of the control plane: refused, or a message whose parts lie
 * inside the packet and which is written back to the same bytes.
 * links: mc_run
 * Input: a packet. */
#include <stdlib.h>
#include <string.h>
#include "../../core/run/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char again[MC_MSG_MAX];
    struct mc_err e = {0};
    struct mc_msg m = {0};
    unsigned char *packet = malloc(size ? size : 1); /* exactly: what is read beyond it is found */
    if (!packet)
        abort();
    if (size)
        memcpy(packet, data, size);
    mc_status st = mc_wire_read(packet, size, &m, &e);
    if (st == MC_OK) {
        const unsigned char *end = packet + size;
        if ((const unsigned char *)m.text + m.ntext > end ||
            (const unsigned char *)m.data + m.ndata != end || !mc_msg_name(m.kind))
            abort();
        if (mc_wire_write(&m, again, sizeof again) != size || memcmp(again, packet, size))
            abort();
    } else if (st != MC_E_PEER || !e.msg[0]) {
        abort();
    }
    free(packet);
    return 0;
}
