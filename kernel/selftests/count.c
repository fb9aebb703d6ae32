// SPDX-License-Identifier: GPL-2.0-only
/* count.c - what it costs in interrupts and system calls, by count */
#include "test.h"

#define ROUNDS 64
#define BATCH 512

static volatile bool stop;

static void *spin(void *unused)
{
	(void)unused;
	pin_to_cpu(1);
	while (!stop)
		;
	return NULL;
}

/*
 * The sum over all processors of a row of /proc/interrupts, read in a way that
 * neither maps nor unmaps memory.
 */
static unsigned long interrupts(const char *row)
{
	static char text[1 << 16];
	unsigned long sum = 0;
	size_t length = 0;
	ssize_t got;
	char *at;
	int fd = open("/proc/interrupts", O_RDONLY);

	REQUIRE(fd >= 0);
	while ((got = read(fd, text + length, sizeof(text) - 1 - length)) > 0)
		length += got;
	close(fd);
	text[length] = 0;
	at = strstr(text, row);
	REQUIRE(at);
	at += strlen(row);
	for (;;) {
		char *end;
		unsigned long n = strtoul(at, &end, 10);

		if (end == at)
			return sum;
		sum += n;
		at = end;
	}
}

static unsigned long shootdowns(void)
{
	return interrupts("TLB:");
}

static void flushes(void)
{
	unsigned long start, in_alloc = 0, in_free = 0, calls;
	pthread_t thread;
	struct map m;

	REQUIRE(sysconf(_SC_NPROCESSORS_ONLN) > 1);
	pin_to_cpu(0);
	map_create(&m, -1, 1, BATCH, 1 << 16);
	pthread_create(&thread, NULL, spin, NULL);
	usleep(100000);
	/* Page tables, and the pages of this test, exist after one round. */
	shootdowns();
	EXPECT_EQ(many(&m, 0, EXMAP_OP_ALLOC, 0, 100, BATCH), BATCH);
	EXPECT_EQ(many(&m, 0, EXMAP_OP_FREE, 0, 100, BATCH), BATCH);
	calls = counters(&m).flushes;
	for (int i = 0; i < ROUNDS; i++) {
		start = shootdowns();
		EXPECT_EQ(many(&m, 0, EXMAP_OP_ALLOC, i, 100, BATCH), BATCH);
		for (int p = 0; p < BATCH; p++)
			m.base[(i + p * 100) * PAGE] = 1;
		in_alloc += shootdowns() - start;
		start = shootdowns();
		EXPECT_EQ(many(&m, 0, EXMAP_OP_FREE, i, 100, BATCH), BATCH);
		in_free += shootdowns() - start;
	}
	stop = true;
	pthread_join(thread, NULL);
	printf("# %d pages: %lu shootdowns by ALLOC, %lu by FREE; %llu flushes\n",
	       ROUNDS * BATCH, in_alloc, in_free,
	       (unsigned long long)counters(&m).flushes - calls);
	EXPECT_EQ(counters(&m).flushes - calls, ROUNDS);
	EXPECT_EQ(in_alloc, 0);
	EXPECT(in_free * 256 <= ROUNDS * BATCH);
}

static void calls(void)
{
	struct exmap_counters c;
	struct map m;

	map_create(&m, open_disk(), 1, BATCH, DISK_PAGES);
	EXPECT_EQ(many(&m, 0, EXMAP_OP_READ, 0, 8, BATCH), BATCH);
	c = counters(&m);
	EXPECT_EQ(c.read, BATCH);
	EXPECT_EQ(c.allocated, BATCH);
	EXPECT_EQ(c.flushes, 0);
	for (int i = 0; i < BATCH; i++)
		EXPECT(stamped(m.base + i * 8 * PAGE, (i * 8) ^ DISK_SEED));
}

const struct test count_tests[] = {
	{ "one flush for a batch of 512, none for allocation", flushes, NULL },
	{ "one call allocates and reads a batch of 512", calls, DISK },
	{ NULL, NULL, NULL },
};
