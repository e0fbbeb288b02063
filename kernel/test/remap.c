// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT
/*
 * Do TLB shootdowns by hypercall work in this Linux guest?
 *
 *	gcc -O2 -static -pthread -o remap kernel/test/remap.c
 *	./remap [THREADS [REMAPS]]		default: one for each CPU, 100000
 *
 * One thread remaps a page in a loop, to either page of a file in memory, publishes the
 * number of the round, and poisons the previous page. The others read the round and then
 * the page: a number below the round came through a stale translation. For each remap the
 * kernel flushes the TLBs of all CPUs that run these threads.
 *
 * Prints a summary with the duration, and exits 1 if a read was stale.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define MAX_THREADS 256

static _Atomic uint64_t published, stale, reads;
static _Atomic int stop;
static volatile uint64_t *page;

static void *read_page(void *unused)
{
	uint64_t mine = 0;

	(void)unused;
	while (!stop) {
		uint64_t round = published;
		uint64_t seen = *page;

		if (seen < round)
			stale++;
		mine++;
	}
	reads += mine;
	return NULL;
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	unsigned int threads = argc > 1 ? atoi(argv[1]) : sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t remaps = argc > 2 ? strtoull(argv[2], NULL, 0) : 100000;
	int file = memfd_create("remap", 0);
	volatile uint64_t *both;
	pthread_t ids[MAX_THREADS];
	double start;

	if (threads < 2 || threads > MAX_THREADS || file < 0 || ftruncate(file, 2 * PAGE)) {
		fprintf(stderr, "remap: at least 2 threads and a file in memory are needed\n");
		return 2;
	}
	both = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
	if (both == MAP_FAILED || page == MAP_FAILED) {
		perror("remap: mmap");
		return 2;
	}
	for (unsigned int i = 1; i < threads; i++)
		if (pthread_create(&ids[i], NULL, read_page, NULL)) {
			perror("remap: thread");
			return 2;
		}

	start = seconds();
	for (uint64_t round = 1; round <= remaps; round++) {
		uint64_t which = round & 1;

		both[which * PAGE / sizeof(*both)] = round;
		if (mmap((void *)page, PAGE, PROT_READ,
			 MAP_SHARED | MAP_FIXED | MAP_POPULATE, file,
			 which * PAGE) == MAP_FAILED) {
			perror("remap: mmap");
			return 2;
		}
		published = round;
		both[!which * PAGE / sizeof(*both)] = 0;
	}
	start = seconds() - start;
	stop = 1;
	for (unsigned int i = 1; i < threads; i++)
		pthread_join(ids[i], NULL);

	printf("remap: %u threads: %llu remaps in %.3f s, %.1f us each, %llu reads, %llu stale\n",
	       threads, (unsigned long long)remaps, start, start * 1e6 / remaps,
	       (unsigned long long)reads, (unsigned long long)stale);
	return stale != 0;
}
