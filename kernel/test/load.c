// SPDX-License-Identifier: GPL-2.0
/*
 * A load on a kernel's locks, which prints its progress.
 *
 *	load alloc THREADS	threads of one process map 64 KiB, touch every page and unmap it
 *	load messaging THREADS	pairs of processes: one sends 100 bytes, 20 times, and the other reads them
 *	load files THREADS	threads of one process duplicate and close a descriptor
 *
 * alloc resembles ebizzy: the lock of the address space, the page allocator's and page tables' locks, and a TLB
 * shootdown each time. messaging resembles hackbench: locks of sockets and run queues, and wake-ups. files has a
 * single spin lock, that of the table of descriptors.
 *
 * Every tenth of a second it prints "load: TIME COUNT .", both in hex: CLOCK_MONOTONIC in us, and rounds of all threads
 * so far. It does not end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 64
#define MAPPED (64 << 10)
#define PAGE 4096
#define MESSAGES 20
#define BYTES 100
#define PERIOD_NS 100000000

/* A cache line for each thread; shared with other processes. */
struct counter {
	uint64_t rounds;
	uint64_t rest[7];
};

static struct counter *counters;

static void fail(const char *what)
{
	printf("load: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void did(long n)
{
	__atomic_fetch_add(&counters[n].rounds, 1, __ATOMIC_RELAXED);
}

static void *alloc(void *arg)
{
	long n = (long)arg;

	for (;;) {
		char *mapped = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (mapped == MAP_FAILED)
			fail("mmap");
		for (int at = 0; at < MAPPED; at += PAGE)
			((volatile char *)mapped)[at] = 1;
		if (munmap(mapped, MAPPED))
			fail("munmap");
		did(n);
	}
	return NULL;
}

static void *files(void *arg)
{
	long n = (long)arg;

	for (;;) {
		int fd = dup(1);

		if (fd < 0 || close(fd))
			fail("dup");
		did(n);
	}
	return NULL;
}

static void send_all(int to, int ready)
{
	char message[BYTES] = { 0 }, ack;

	for (;;) {
		for (int i = 0; i < MESSAGES; i++)
			if (write(to, message, BYTES) != BYTES)
				fail("write");
		if (read(ready, &ack, 1) != 1)
			fail("read");
	}
}

static void receive_all(long n, int from, int ready)
{
	char message[BYTES];

	for (;;) {
		for (int left = MESSAGES * BYTES; left > 0;) {
			ssize_t got = read(from, message, sizeof(message));

			if (got <= 0)
				fail("read");
			left -= got;
		}
		if (write(ready, message, 1) != 1)
			fail("write");
		did(n);
	}
}

static void messaging(long n)
{
	int data[2], ready[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, data) || socketpair(AF_UNIX, SOCK_STREAM, 0, ready))
		fail("socketpair");
	if (!fork())
		send_all(data[0], ready[1]);
	if (!fork())
		receive_all(n, data[1], ready[0]);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	long threads = argc > 2 ? atol(argv[2]) : 0;
	struct timespec now, pause = { .tv_nsec = PERIOD_NS };

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (threads < 1 || threads > MOST) {
		printf("load: usage: load alloc|messaging|files THREADS (1 to %d)\n", MOST);
		return 2;
	}
	counters = mmap(NULL, MOST * sizeof(*counters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (counters == MAP_FAILED)
		fail("mmap");
	for (long n = 0; n < threads; n++) {
		pthread_t thread;
		int error = 0;

		if (!strcmp(what, "alloc")) {
			error = pthread_create(&thread, NULL, alloc, (void *)n);
		} else if (!strcmp(what, "files")) {
			error = pthread_create(&thread, NULL, files, (void *)n);
		} else if (!strcmp(what, "messaging")) {
			messaging(n);
		} else {
			printf("load: there is no %s: alloc, messaging or files\n", what);
			return 2;
		}
		if (error) {
			errno = error;
			fail("a thread");
		}
	}
	for (;;) {
		uint64_t rounds = 0;

		nanosleep(&pause, NULL);
		clock_gettime(CLOCK_MONOTONIC, &now);
		for (long n = 0; n < threads; n++)
			rounds += __atomic_load_n(&counters[n].rounds, __ATOMIC_RELAXED);
		printf("load: %llx %llx .\n", now.tv_sec * 1000000ULL + now.tv_nsec / 1000, (unsigned long long)rounds);
	}
}
