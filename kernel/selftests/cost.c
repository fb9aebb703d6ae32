// SPDX-License-Identifier: GPL-2.0-only
/*
 * cost.c - instructions for each page allocated and freed, against madvise
 *
 * To be run on one processor whose time stamp counts instructions: in QEMU
 * with -smp 1 -icount shift=1,sleep=off, where a figure repeats digit for
 * digit. Elsewhere it prints cycles. Scattered pages, batches of 512, after
 * one round to make page tables. The exit status says whether exmap took at
 * most half.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <x86intrin.h>

#include "../exmap/exmap.h"

#define PAGE 4096UL
#define BATCH 512
#define STEP 17
#define PAGES (BATCH * STEP)
#define ROUNDS 16

static struct exmap_user_interface *iface;
static volatile char *area, *plain;
static int fd;

static int act(int op)
{
	struct exmap_action_params params = { .iov_len = BATCH, .opcode = op };

	for (int i = 0; i < BATCH; i++) {
		iface->iov[i].page = i * STEP;
		iface->iov[i].len = 1;
	}
	return ioctl(fd, EXMAP_IOCTL_ACTION, &params);
}

static int round_exmap(void)
{
	if (act(EXMAP_OP_ALLOC))
		return 1;
	for (int i = 0; i < BATCH; i++)
		area[i * STEP * PAGE] = 1;
	return act(EXMAP_OP_FREE);
}

static int round_madvise(void)
{
	for (int i = 0; i < BATCH; i++)
		plain[i * STEP * PAGE] = 1;
	for (int i = 0; i < BATCH; i++) {
		if (madvise((char *)plain + i * STEP * PAGE, PAGE,
			    MADV_DONTNEED))
			return 1;
	}
	return 0;
}

/* Ticks for each page, or 0 if a round failed. */
static uint64_t measure(int (*round)(void))
{
	uint64_t start;

	if (round())
		return 0;
	start = __rdtsc();
	for (int i = 0; i < ROUNDS; i++) {
		if (round())
			return 0;
	}
	return (__rdtsc() - start) / (ROUNDS * BATCH);
}

int main(void)
{
	struct exmap_ioctl_setup setup = {
		.fd = -1, .max_interfaces = 1, .buffer_size = BATCH,
	};
	uint64_t start, unit, a, b;

	fd = open("/dev/exmap", O_RDWR);
	if (fd < 0 || ioctl(fd, EXMAP_IOCTL_SETUP, &setup)) {
		perror("exmap");
		return 2;
	}
	area = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	iface = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		     EXMAP_OFF_INTERFACE(0));
	plain = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	madvise((char *)plain, PAGES * PAGE, MADV_NOHUGEPAGE);

	/* A loop of two instructions tells how many ticks one takes. */
	uint64_t n = 1000000;

	start = __rdtsc();
	__asm__ volatile("1: dec %0; jnz 1b" : "+r"(n));
	unit = (__rdtsc() - start) / 1000;	/* thousandths of two */

	a = measure(round_exmap);
	b = measure(round_madvise);
	if (!a || !b || !unit) {
		printf("not ok - a round failed\n");
		return 2;
	}
	printf("# a page allocated and freed: %llu instructions by exmap, ",
	       (unsigned long long)(a * 2000 / unit));
	printf("%llu by fault and madvise\n",
	       (unsigned long long)(b * 2000 / unit));
	printf("%s - exmap takes at most half of the instructions\n",
	       a * 2 <= b ? "ok" : "not ok");
	return a * 2 > b;
}
