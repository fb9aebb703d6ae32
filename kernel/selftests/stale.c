// SPDX-License-Identifier: GPL-2.0-only
/*
 * stale.c - what FREE released is out of reach of every processor
 *
 * A reader on one processor looks at page X of the area without pause. The
 * writer on the other frees X, allocates other pages, among which is the frame
 * that X had, and writes a secret into all. If the reader ever sees the secret
 * at X, its processor still translated X by an entry that FREE had cleared.
 * Must fail with a module built with EXMAP_TEST_NO_FLUSH.
 */
#include <setjmp.h>

#include "test.h"

#define SECRET 0x5ec2e75ec2e75ec2ULL
#define ROUNDS 300

static struct map m;
static volatile bool done;
static volatile uint64_t looks, seen, faults;
static sigjmp_buf resume;

static void on_fault(int signal)
{
	(void)signal;
	siglongjmp(resume, 1);
}

static void *reader(void *unused)
{
	volatile uint64_t *x = (uint64_t *)m.base;

	(void)unused;
	pin_to_cpu(1);
	if (sigsetjmp(resume, 1))
		faults++;
	while (!done) {
		looks++;
		if (*x == SECRET)
			seen++;
	}
	return NULL;
}

static void stale(void)
{
	struct sigaction action = { .sa_handler = on_fault };
	pthread_t thread;

	REQUIRE(sysconf(_SC_NPROCESSORS_ONLN) > 1);
	pin_to_cpu(0);
	map_create(&m, -1, 1, 64, 1024);
	sigaction(SIGSEGV, &action, NULL);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 1, NULL), 0);
	pthread_create(&thread, NULL, reader, NULL);
	for (int round = 0; round < ROUNDS; round++) {
		*(volatile uint64_t *)m.base = round;
		wait_for_looks(&looks, 50);
		/* By turns alone, which flushes one address, and in a batch. */
		if (round % 2)
			EXPECT_EQ(one(&m, 0, EXMAP_OP_FREE, 0, 1, NULL), 0);
		else
			EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 1024,
					    NULL), 0);
		EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 100, 64, NULL), 0);
		for (int i = 100; i < 164; i++)
			*(volatile uint64_t *)(m.base + i * PAGE) = SECRET;
		wait_for_looks(&looks, 50);
		for (int i = 100; i < 164; i++)
			*(volatile uint64_t *)(m.base + i * PAGE) = 0;
		EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 100, 64, NULL), 0);
		EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 1, NULL), 0);
	}
	done = true;
	pthread_join(thread, NULL);
	printf("# %llu looks, %llu faults, %llu stale\n",
	       (unsigned long long)looks, (unsigned long long)faults,
	       (unsigned long long)seen);
	EXPECT_EQ(seen, 0);
	EXPECT(faults > 0);
}

const struct test stale_tests[] = {
	{ "a page freed by one thread cannot be read by another through a stale entry",
	  stale, NULL },
	{ NULL, NULL, NULL },
};
