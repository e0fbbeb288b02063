/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Requirements of the policies: integer types, a 64-bit division, and single
 * loads and stores.
 *
 * In the kernel they come from its own headers. A BPF program must include its
 * vmlinux.h before (or any header with u8, u32, u64, s64 and bool). Elsewhere
 * they come from the freestanding headers of the compiler.
 */
#ifndef TANDEM_TYPES_H
#define TANDEM_TYPES_H

#if defined(__KERNEL__)
#include <linux/types.h>
#include <linux/math64.h>
#define tandem_div64(dividend, divisor) div64_u64((dividend), (divisor))
#elif defined(__bpf__)
#define tandem_div64(dividend, divisor) ((dividend) / (divisor))
#else
#include <stdbool.h>
#include <stdint.h>
typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;
#define tandem_div64(dividend, divisor) ((dividend) / (divisor))
#endif

/* BPF needs everything in one function; unused functions must not warn. */
#define TANDEM_INLINE \
	static inline __attribute__((__always_inline__, __unused__))

/*
 * For fields that another CPU may change concurrently: the compiler neither
 * repeats, splits nor omits the access. They imply no ordering.
 */
#define TANDEM_LOAD(field) (*(const volatile __typeof__(field) *)&(field))
#define TANDEM_STORE(field, value) \
	(*(volatile __typeof__(field) *)&(field) = (value))

#endif /* TANDEM_TYPES_H */
