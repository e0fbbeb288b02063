/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * What the policies need from where they are compiled: four types, a 64-bit
 * division, and loads and stores that happen once.
 *
 * In the kernel they come from its own headers. In BPF the includer has already
 * included its vmlinux.h (or anything else with u8, u32, u64, s64 and bool).
 * Elsewhere they come from the freestanding headers of the compiler.
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

/* BPF wants everything in one body; a header must not warn where it is unused. */
#define TANDEM_INLINE \
	static inline __attribute__((__always_inline__, __unused__))

/*
 * For fields that another CPU may change meanwhile: the access is made once and
 * as it is written, neither repeated nor left out. They order nothing.
 */
#define TANDEM_LOAD(field) (*(const volatile __typeof__(field) *)&(field))
#define TANDEM_STORE(field, value) \
	(*(volatile __typeof__(field) *)&(field) = (value))

#endif /* TANDEM_TYPES_H */
