// SPDX-License-Identifier: GPL-2.0-only
/*
 * stress.c - many threads, a pool that is too small, all contents verified
 *
 * Each thread owns every eighth page of the area and keeps a note of what it
 * wrote to each. Frames wander between threads by FREE and stealing, so a
 * frame that is mapped twice, handed out early or lost shows as a wrong stamp
 * or as pages missing at the end. Meanwhile another thread disturbs the
 * address space: forks, maps, unmaps, tries what is refused.
 */
#include <time.h>

#include "test.h"

#define THREADS 8
#define SHARE 1024		/* pages that each thread owns */

static struct map m;
static volatile bool stop;
static bool with_disk;

struct worker {
	int id;
	pthread_t thread;
	uint64_t random;
	uint64_t note[SHARE];	/* 0: not mapped; else the stamp's seed */
	unsigned long allocs, frees, reads, checks, refused;
};

static int seconds(void)
{
	const char *s = getenv("EXMAP_SECONDS");

	return s ? atoi(s) : 5;
}

static unsigned long page_of(struct worker *w, unsigned long slot)
{
	return slot * THREADS + w->id;
}

static void check(struct worker *w, unsigned long slot)
{
	unsigned long page = page_of(w, slot);

	w->checks++;
	if (!stamped(m.base + page * PAGE, w->note[slot]))
		note_failure(__FILE__, __LINE__, "page %lu: wrong content",
			     page);
}

static void alloc_some(struct worker *w)
{
	struct exmap_iov *iov = m.iface[w->id]->iov;
	struct exmap_action_params params = {
		.interface = w->id, .opcode = EXMAP_OP_ALLOC,
	};
	unsigned long slots[128];
	int nr = 0, want = 1 + random_u64(&w->random) % 128;

	for (int i = 0; i < want; i++) {
		unsigned long slot = random_u64(&w->random) % SHARE;

		if (w->note[slot])
			continue;
		w->note[slot] = 1;	/* not twice in a batch */
		slots[nr] = slot;
		iov[nr].page = page_of(w, slot);
		iov[nr].len = 1;
		nr++;
	}
	params.iov_len = nr;
	if (ioctl(m.fd, EXMAP_IOCTL_ACTION, &params) < 0)
		note_failure(__FILE__, __LINE__, "errno %d", errno);
	for (int i = 0; i < nr; i++) {
		if (iov[i].res == -ENOMEM) {
			w->note[slots[i]] = 0;
			w->refused++;
			continue;
		}
		if (iov[i].res || iov[i].pages != 1)
			note_failure(__FILE__, __LINE__, "res %d, pages %d",
				     iov[i].res, iov[i].pages);
		w->note[slots[i]] = random_u64(&w->random) | 1;
		stamp(m.base + page_of(w, slots[i]) * PAGE, w->note[slots[i]]);
		w->allocs++;
	}
}

static void read_one(struct worker *w)
{
	unsigned long slot = random_u64(&w->random) % SHARE;
	unsigned long page = page_of(w, slot);
	ssize_t got;

	if (w->note[slot] || page >= DISK_PAGES)
		return;
	got = pread(m.fd, m.base + page * PAGE, PAGE, w->id);
	if (got == PAGE) {
		w->note[slot] = page ^ DISK_SEED;
		w->reads++;
		check(w, slot);
	} else if (got != -1 || errno != ENOMEM) {
		note_failure(__FILE__, __LINE__, "pread gives %zd, errno %d",
			     got, errno);
	}
}

static void free_some(struct worker *w, unsigned long want)
{
	struct exmap_range ranges[256] = { 0 };
	struct exmap_batch batch = {
		.ranges = (uintptr_t)ranges, .opcode = EXMAP_OP_FREE,
		.interface = w->id,
	};
	unsigned long from = random_u64(&w->random) % SHARE;

	for (unsigned long i = 0; i < SHARE && batch.nr_ranges < want; i++) {
		unsigned long slot = (from + i) % SHARE;

		if (!w->note[slot])
			continue;
		check(w, slot);
		w->note[slot] = 0;
		ranges[batch.nr_ranges].first = page_of(w, slot);
		ranges[batch.nr_ranges].count = 1;
		batch.nr_ranges++;
	}
	if (ioctl(m.fd, EXMAP_IOCTL_BATCH, &batch) ||
	    batch.pages_done != batch.nr_ranges)
		note_failure(__FILE__, __LINE__, "freed %llu of %u",
			     (unsigned long long)batch.pages_done,
			     batch.nr_ranges);
	w->frees += batch.nr_ranges;
}

static void *work(void *data)
{
	struct worker *w = data;

	while (!stop) {
		switch (random_u64(&w->random) % 4) {
		case 0:
		case 1:
			alloc_some(w);
			break;
		case 2:
			if (with_disk)
				read_one(w);
			break;
		default:
			free_some(w, 1 + random_u64(&w->random) % 256);
		}
	}
	for (int i = 0; i < SHARE / 256; i++)
		free_some(w, 256);
	return NULL;
}

static void *disturb(void *unused)
{
	(void)unused;
	while (!stop) {
		char *other = mmap(NULL, 1 << 22, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		pid_t pid;

		memset(other, 1, 1 << 20);
		munmap(other, 1 << 22);
		mprotect(m.base, PAGE, PROT_READ);
		munmap(m.base, PAGE);
		madvise(m.base, m.pages * PAGE, MADV_COLD);
		pid = fork();
		if (!pid)
			_exit(mapped(m.base));
		int status = 0;

		waitpid(pid, &status, 0);
		EXPECT_EQ(status, 0);
		usleep(20000);
	}
	return NULL;
}

static void run(unsigned long pool)
{
	static struct worker workers[THREADS];
	unsigned long sums[5] = { 0 };
	pthread_t disturber;

	with_disk = !access(DISK, R_OK);
	map_create(&m, with_disk ? open_disk() : -1, THREADS, pool,
		   THREADS * SHARE);
	for (int i = 0; i < THREADS; i++) {
		workers[i].id = i;
		workers[i].random = i * 1000003 + pool;
		pthread_create(&workers[i].thread, NULL, work, &workers[i]);
	}
	pthread_create(&disturber, NULL, disturb, NULL);
	sleep(seconds());
	stop = true;
	pthread_join(disturber, NULL);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		sums[0] += workers[i].allocs;
		sums[1] += workers[i].frees;
		sums[2] += workers[i].reads;
		sums[3] += workers[i].checks;
		sums[4] += workers[i].refused;
	}
	printf("# %lu allocated, %lu freed, %lu read, %lu checked, %lu refused\n",
	       sums[0], sums[1], sums[2], sums[3], sums[4]);
	EXPECT(sums[0] > 1000);
	EXPECT_EQ(sums[0] + sums[2], sums[1]);
	EXPECT_EQ(count_mapped(&m, 0, m.pages), 0);
	EXPECT_EQ(drain(&m, 3, 0), pool);
	map_destroy(&m);
}

static void roomy(void)
{
	run(THREADS * SHARE);
}

static void tight(void)
{
	run(THREADS * SHARE / 5);
}

const struct test stress_tests[] = {
	{ "many threads, enough pages: every content is right", roomy, NULL },
	{ "many threads, a fifth of the pages: every content is right", tight,
	  NULL },
	{ NULL, NULL, NULL },
};
