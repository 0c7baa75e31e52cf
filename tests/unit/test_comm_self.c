/* test_comm_self.c - the group of one keeps the protocol of comm.h.
 * links: mc_comm */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>
#include "../../core/base/arena.h"
#include "../../core/base/flight.h"
#include "../../core/comm/comm.h"

static struct mc_comm *make(void)
{
    struct mc_comm *c;
    const struct mc_comm_cfg cfg = {.name = "dp", .size = 1, .me = 0};
    assert_int_equal(mc_comm_self_create(&cfg, &c, NULL), MC_OK);
    return c;
}

static void collectives_copy(void **state)
{
    (void)state;
    struct mc_comm *c = make();
    const struct mc_comm_ops *o = c->ops;
    struct mc_comm_req *r;
    double in[4] = {1, 2, 3, 4}, out[4];
    const int64_t n = 4;
    for (int k = 0; k < 5; k++) {
        memset(out, 0, sizeof out);
        if (k == 0)
            assert_int_equal(o->all_reduce(c, in, out, 4, MC_F64, MC_SUM, NULL, &r, NULL), MC_OK);
        else if (k == 1)
            assert_int_equal(o->reduce_scatter(c, in, out, &n, MC_F64, MC_MAX, NULL, &r, NULL),
                             MC_OK);
        else if (k == 2)
            assert_int_equal(o->all_gather(c, in, out, &n, MC_F64, NULL, &r, NULL), MC_OK);
        else if (k == 3)
            assert_int_equal(o->all_to_all(c, in, &n, out, &n, MC_F64, NULL, &r, NULL), MC_OK);
        else {
            memcpy(out, in, sizeof in);
            assert_int_equal(o->broadcast(c, out, 4, MC_F64, 0, NULL, &r, NULL), MC_OK);
        }
        assert_int_equal(o->wait(c, r, 0, NULL), MC_OK);
        assert_memory_equal(in, out, sizeof in);
    }
    assert_int_equal(o->all_reduce(c, in, in, 4, MC_F64, MC_SUM, NULL, &r, NULL), MC_OK);
    assert_int_equal(o->wait(c, r, 0, NULL), MC_OK);
    assert_int_equal(o->barrier(c, &r, NULL), MC_OK);
    assert_int_equal(o->wait(c, r, 0, NULL), MC_OK);
    assert_int_equal(c->seq, 7);
    assert_int_equal(o->register_buffer(c, in, sizeof in, NULL), MC_OK);
    o->destroy(c);
}

static void messages_match_by_tag_and_order(void **state)
{
    (void)state;
    struct mc_comm *c = make();
    const struct mc_comm_ops *o = c->ops;
    struct mc_comm_req *s[3], *r[3];
    int32_t a = 10, b = 20, d = 30, x = 0, y = 0, z = 0;
    assert_int_equal(o->group_begin(c, NULL), MC_OK);
    /* two sends of tag 1 in order, one receive of tag 2 before its send */
    assert_int_equal(o->send(c, &a, 1, MC_I32, 0, 1, NULL, &s[0], NULL), MC_OK);
    assert_int_equal(o->recv(c, &z, 1, MC_I32, 0, 2, NULL, &r[2], NULL), MC_OK);
    assert_int_equal(o->send(c, &b, 1, MC_I32, 0, 1, NULL, &s[1], NULL), MC_OK);
    assert_int_equal(o->recv(c, &x, 1, MC_I32, 0, 1, NULL, &r[0], NULL), MC_OK);
    assert_int_equal(o->send(c, &d, 1, MC_I32, 0, 2, NULL, &s[2], NULL), MC_OK);
    assert_int_equal(o->recv(c, &y, 1, MC_I32, 0, 1, NULL, &r[1], NULL), MC_OK);
    assert_int_equal(o->group_end(c, NULL), MC_OK);
    for (int i = 2; i >= 0; i--) {
        assert_int_equal(o->wait(c, r[i], 0, NULL), MC_OK);
        assert_int_equal(o->wait(c, s[i], 0, NULL), MC_OK);
    }
    assert_int_equal(x, 10);
    assert_int_equal(y, 20);
    assert_int_equal(z, 30);
    o->destroy(c);
}

static void protocol_errors_are_bugs(void **state)
{
    (void)state;
    struct mc_comm *c = make(), *none = NULL;
    const struct mc_comm_ops *o = c->ops;
    struct mc_comm_req *r, *q;
    int32_t a[2] = {1, 2}, b[2];
    const int64_t one = 1, two = 2;
    struct mc_err e = {0};
    assert_int_equal(o->barrier(c, &r, NULL), MC_OK);
    assert_int_equal(o->wait(c, r, 0, NULL), MC_OK);
    assert_int_equal(o->wait(c, r, 0, NULL), MC_E_BUG); /* twice */
    assert_int_equal(o->recv(c, b, 1, MC_I32, 0, 5, NULL, &r, NULL), MC_OK);
    assert_int_equal(o->send(c, a, 2, MC_I32, 0, 5, NULL, &q, &e), MC_E_BUG); /* counts differ */
    assert_non_null(strstr(e.msg, "tag 5"));
    assert_int_equal(o->send(c, a, 1, MC_F32, 0, 5, NULL, &q, NULL), MC_E_BUG); /* dtypes differ */
    mc_err_clear(&e);
    assert_int_equal(o->wait(c, r, 0, &e), MC_E_BUG); /* its other half never begins */
    assert_non_null(strstr(e.msg, "has not sent"));
    assert_int_equal(o->send(c, a, 1, MC_I32, 1, 0, NULL, &r, NULL), MC_E_BUG); /* member 1 */
    assert_int_equal(o->broadcast(c, a, 1, MC_I32, 1, NULL, &r, NULL), MC_E_BUG);
    assert_int_equal(o->all_to_all(c, a, &one, b, &two, MC_I32, NULL, &r, NULL), MC_E_BUG);
    assert_int_equal(o->all_reduce(c, a, b, -1, MC_I32, MC_SUM, NULL, &r, NULL), MC_E_BUG);
    assert_int_equal(o->group_end(c, NULL), MC_E_BUG);
    int n = 0; /* requests that nobody waits for run out */
    while (o->barrier(c, &r, NULL) == MC_OK && n < 100000)
        n++;
    assert_true(n > 100 && n < 100000);
    o->destroy(c);
    const struct mc_comm_cfg of_two = {.name = "dp", .size = 2, .me = 0};
    assert_int_equal(mc_comm_self_create(&of_two, &none, NULL), MC_E_BUG);
    assert_null(none);
}

static void abort_ends_calls_in_flight_and_later(void **state)
{
    (void)state;
    struct mc_comm *c = make();
    const struct mc_comm_ops *o = c->ops;
    struct mc_comm_req *r, *q;
    int32_t a = 1;
    assert_int_equal(o->recv(c, &a, 1, MC_I32, 0, 0, NULL, &r, NULL), MC_OK);
    o->abort(c);
    assert_int_equal(o->wait(c, r, 0, NULL), MC_E_PEER);
    assert_int_equal(o->send(c, &a, 1, MC_I32, 0, 0, NULL, &q, NULL), MC_E_PEER);
    assert_int_equal(o->barrier(c, &q, NULL), MC_E_PEER);
    assert_int_equal(o->group_begin(c, NULL), MC_E_PEER);
    assert_int_equal(o->register_buffer(c, &a, 4, NULL), MC_E_PEER);
    o->destroy(c);
}

static void calls_are_noted_and_allocate_nothing(void **state)
{
    (void)state;
    static struct mc_flight ring;
    struct mc_comm *c = make();
    struct mc_comm_req *r;
    float v[3] = {0};
    mc_flight_use(&ring);
    uint64_t calls = mc_mem_stats().calls;
    assert_int_equal(c->ops->all_reduce(c, v, v, 3, MC_F32, MC_SUM, NULL, &r, NULL), MC_OK);
    assert_int_equal(c->ops->wait(c, r, 0, NULL), MC_OK);
    assert_int_equal(mc_mem_stats().calls, calls);
    mc_flight_use(NULL);
    assert_int_equal(ring.next, 2);
    assert_string_equal(ring.ev[0].what, "comm.all_reduce dp");
    assert_string_equal(ring.ev[1].what, "comm.all_reduce dp end");
    assert_int_equal(ring.ev[0].bytes, 12);
    assert_int_equal(ring.ev[0].step, 1);
    c->ops->destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_copy),
        cmocka_unit_test(messages_match_by_tag_and_order),
        cmocka_unit_test(protocol_errors_are_bugs),
        cmocka_unit_test(abort_ends_calls_in_flight_and_later),
        cmocka_unit_test(calls_are_noted_and_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
