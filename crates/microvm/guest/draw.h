/*
 * Random sizes from a seed: PCG32 (O'Neill, "PCG: A Family of Simple Fast Space-Efficient
 * Statistically Good Algorithms for Random Number Generation", 2014; variant XSH RR 64/32).
 *
 * Every vCPU has its own stream, so that the sizes of vCPU n depend only on the seed and n, not on
 * the interleaving of vCPUs. The first FINGERPRINT_DRAWS draws are hashed (FNV-1a by words), so that
 * two runs can be compared without recording them.
 */
#ifndef TANDEM_DRAW_H
#define TANDEM_DRAW_H

#include "shared.h"

#define FINGERPRINT_DRAWS 64

static inline u32 draw_bits(struct tandem_vcpu *me)
{
    u64 old = me->random_state;
    u32 shifted = (u32)(((old >> 18) ^ old) >> 27);
    u32 turn = (u32)(old >> 59);
    me->random_state = old * 6364136223846793005ull + me->random_stream;
    return shifted >> turn | shifted << (-turn & 31);
}

static inline void draw_seed(struct tandem_vcpu *me, u64 seed, u32 stream)
{
    me->random_state = 0;
    me->random_stream = (u64)stream << 1 | 1;
    draw_bits(me);
    me->random_state += seed;
    draw_bits(me);
    me->fingerprint = 0xcbf29ce484222325ull;
}

/* Returns a number in [0, below), by multiplication; below 2^32 it is as uniform as 32 bits allow. */
static inline u64 draw_below(struct tandem_vcpu *me, u64 below)
{
    u32 bits = draw_bits(me);
    if (me->draws < FINGERPRINT_DRAWS)
        me->fingerprint = (me->fingerprint ^ bits) * 0x100000001b3ull;
    me->draws++;
    return (u64)(((unsigned __int128)below * bits) >> 32);
}

/* Returns a uniform value of `cycles` ± `percent`. */
static inline u64 draw_size(struct tandem_vcpu *me, u64 cycles, u64 percent)
{
    u64 spread = cycles * percent / 100; /* sizes end at 10^12 cycles: this fits */
    return cycles - spread + draw_below(me, 2 * spread + 1);
}

#endif
