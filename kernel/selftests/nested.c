// SPDX-License-Identifier: GPL-2.0-only
/*
 * nested.c - calls in the middle of other calls
 *
 * A FREE clears many entries before it flushes. Whatever another thread does
 * meanwhile, and has done when its call returns, must hold: what it took away,
 * or found taken away, is out of reach. And a call that waits in the middle
 * finds another area, or none, or no process, when it goes on.
 */
#include <setjmp.h>

#include "test.h"
#include "uffd.h"

/* ---- removals that find the entry empty, but not flushed ---- */

#define AFTER 511UL		/* ranges that FREE has after page 0 */
#define LENGTH 7UL		/* pages of each: one hold of the lock for all */
#define POOL (AFTER * LENGTH + 1)
#define CATCHES 10		/* rounds in which a call came in between */

static struct map area;
static volatile uint64_t begun, returned;
static volatile bool over;
static sigjmp_buf fault;

static void on_fault(int signal)
{
	(void)signal;
	siglongjmp(fault, 1);
}

/* Page 0 and, in the same call, thousands of others; on processor 0. */
static int act_on_all(int op, int iface)
{
	static struct exmap_range ranges[AFTER + 1];
	struct exmap_batch batch = {
		.ranges = (uintptr_t)ranges, .nr_ranges = AFTER + 1,
		.opcode = op, .interface = iface,
	};

	ranges[0] = (struct exmap_range) { .count = 1 };
	for (unsigned long i = 1; i <= AFTER; i++)
		ranges[i] = (struct exmap_range) {
			.first = i * 8, .count = LENGTH,
		};
	return ioctl(area.fd, EXMAP_IOCTL_BATCH, &batch);
}

static void *free_all(void *unused)
{
	uint64_t round = 0;

	(void)unused;
	pin_to_cpu(0);
	while (!over) {
		if (begun == round) {
			sched_yield();
			continue;
		}
		round = begun;
		act_on_all(EXMAP_OP_FREE, 0);
		returned = round;
	}
	return NULL;
}

static bool present(int pagemap, const volatile void *at)
{
	uint64_t entry = 0;

	REQUIRE(pread(pagemap, &entry, 8, (uintptr_t)at / PAGE * 8) == 8);
	return entry >> 63;
}

static void advise(void)
{
	EXPECT_EQ(madvise(area.base, PAGE, MADV_DONTNEED), 0);
}

static void advise_wide(void)
{
	/* Entries that FREE has cleared, and some that it has not reached. */
	EXPECT_EQ(madvise(area.base, 64 * PAGE, 24 /* DONTNEED_LOCKED */), 0);
}

static void release(void)
{
	EXPECT_EQ(batch_one(&area, 1, EXMAP_OP_FREE, 0, 1, NULL), 0);
}

static void protect(void)
{
	EXPECT_ERRNO(mprotect(area.base, area.pages * PAGE, PROT_READ), EINVAL);
}

static void move(void)
{
	EXPECT(mremap(area.base, area.pages * PAGE, 2 * area.pages * PAGE,
		      MREMAP_MAYMOVE) == MAP_FAILED);
}

static void unmap(void)
{
	EXPECT_EQ(munmap(area.base, area.pages * PAGE), 0);
}

static const struct {
	const char *what;
	void (*call)(void);
} ways[] = {
	{ "MADV_DONTNEED", advise }, { "MADV_DONTNEED_LOCKED", advise_wide },
	{ "FREE", release }, { "mprotect", protect }, { "mremap", move },
	{ "munmap", unmap }, { NULL, NULL },
};

/*
 * One round: this processor keeps a translation of page 0, which the other's
 * FREE clears first of many. As soon as the entry is seen to be empty @call
 * finds it so. Return: whether the FREE was still under way then.
 */
static bool come_between(int pagemap, uint64_t round, void (*call)(void),
			 volatile unsigned long *stale)
{
	volatile uint64_t *word = (void *)area.base;
	volatile bool between = false;

	REQUIRE(act_on_all(EXMAP_OP_ALLOC, 0) == 0);
	*word = round;
	if (sigsetjmp(fault, 1))
		return between;
	begun = round;
	while (present(pagemap, area.base))
		;
	between = returned != round;
	call();
	/* A signal, or zeroes where pages are blank. */
	if (*word == round)
		++*stale;
	return between;
}

static void restore(void)
{
	while (returned != begun)
		sched_yield();
	/* After munmap, in place. */
	if (mmap(area.base, area.pages * PAGE, PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_FIXED_NOREPLACE, area.fd, 0) == MAP_FAILED)
		EXPECT(errno == EBUSY || errno == EEXIST);
	EXPECT_EQ(batch_one(&area, 0, EXMAP_OP_FREE, 0, area.pages, NULL), 0);
}

static void found_empty(unsigned int faults)
{
	struct sigaction action = { .sa_handler = on_fault };
	int pagemap = open("/proc/self/pagemap", O_RDONLY);
	uint64_t round = 0;
	pthread_t thread;

	REQUIRE(sysconf(_SC_NPROCESSORS_ONLN) > 1 && pagemap >= 0);
	map_create_with(&area, faults, -1, 2, POOL, 4096);
	pin_to_cpu(1);
	sigaction(SIGSEGV, &action, NULL);
	pthread_create(&thread, NULL, free_all, NULL);
	for (size_t way = 0; ways[way].what; way++) {
		volatile unsigned long stale = 0;
		int caught = 0;

		for (int tries = 0; caught < CATCHES && tries < 200; tries++) {
			caught += come_between(pagemap, ++round,
					       ways[way].call, &stale);
			restore();
		}
		printf("# %s: came between %d times, %lu stale\n",
		       ways[way].what, caught, (unsigned long)stale);
		EXPECT(caught > 0);
		EXPECT_EQ(stale, 0);
	}
	over = true;
	pthread_join(thread, NULL);
	signal(SIGSEGV, SIG_DFL);
	EXPECT_EQ(drain(&area, 0, 0), POOL);
	close(pagemap);
	map_destroy(&area);
}

static void found_empty_faults(void)
{
	found_empty(EXMAP_FAULTS_SIGNAL);
}

static void found_empty_blank(void)
{
	found_empty(EXMAP_FAULTS_BLANK);
}

/* ---- ALLOC beside FREE, where pages may be blank ---- */

static void *free_and_alloc(void *unused)
{
	(void)unused;
	pin_to_cpu(0);
	while (!over) {
		act_on_all(EXMAP_OP_ALLOC, 0);
		act_on_all(EXMAP_OP_FREE, 0);
	}
	return NULL;
}

/* Nothing is ever read, so that nothing is blank. */
static void filled_beside_free(void)
{
	const unsigned long mine = 4096;
	pthread_t thread;
	unsigned long done;

	REQUIRE(sysconf(_SC_NPROCESSORS_ONLN) > 1);
	map_create_with(&area, EXMAP_FAULTS_BLANK, -1, 2, POOL + 512,
			mine + 512);
	pin_to_cpu(1);
	pthread_create(&thread, NULL, free_and_alloc, NULL);
	for (int round = 0; round < 500; round++) {
		EXPECT_EQ(batch_one(&area, 1, EXMAP_OP_ALLOC, mine, 64, &done),
			  0);
		EXPECT_EQ(done, 64);
		EXPECT_EQ(batch_one(&area, 1, EXMAP_OP_FREE, mine, 64, &done),
			  0);
		EXPECT_EQ(done, 64);
	}
	over = true;
	pthread_join(thread, NULL);
	printf("# %llu flushes by FREE, %llu by ALLOC\n",
	       (unsigned long long)counters(&area).flushes,
	       (unsigned long long)counters(&area).flushes_blank);
	EXPECT_EQ(counters(&area).flushes_blank, 0);
	map_destroy(&area);
}

/* ---- a batch that waits in the middle, for memory that is held back ---- */

#define BEFORE 512UL		/* ranges that are dealt with before it waits */
#define HELD (BEFORE * sizeof(struct exmap_range))

struct waiting {
	int fd, uffd;
	char *ranges;
	struct exmap_batch batch;
	long result;
	int error;
	pthread_t thread;
};

static void *wait_in_batch(void *data)
{
	struct waiting *w = data;

	w->result = ioctl(w->fd, EXMAP_IOCTL_BATCH, &w->batch);
	w->error = errno;
	return NULL;
}

/* Begins a batch on pages 0 to 7, which then waits for one more range. */
static void begin_waiting(struct waiting *w, int fd, int op)
{
	double end = now() + 60;
	struct exmap_range *ranges;
	struct uffd_msg message;

	w->ranges = mmap(NULL, HELD + PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(w->ranges != MAP_FAILED);
	ranges = (void *)w->ranges;
	for (unsigned long i = 0; i < BEFORE; i++)
		ranges[i] = (struct exmap_range) { .first = i % 8, .count = 1 };
	w->fd = fd;
	w->batch = (struct exmap_batch) {
		.ranges = (uintptr_t)ranges, .nr_ranges = BEFORE + 1,
		.opcode = op,
	};
	w->uffd = uffd_open(0);
	REQUIRE(w->uffd >= 0);
	REQUIRE(uffd_register(w->uffd, w->ranges + HELD, PAGE,
			      UFFDIO_REGISTER_MODE_MISSING) == 0);
	REQUIRE(pthread_create(&w->thread, NULL, wait_in_batch, w) == 0);
	while (read(w->uffd, &message, sizeof(message)) != sizeof(message)) {
		REQUIRE(now() < end);
		usleep(1000);
	}
}

/* Lets it go on, with the range that it waited for. */
static void end_waiting(struct waiting *w, unsigned long first,
			unsigned long count)
{
	char *page = aligned_alloc(PAGE, PAGE);
	struct uffdio_copy copy = {
		.dst = (uintptr_t)w->ranges + HELD, .src = (uintptr_t)page,
		.len = PAGE,
	};

	REQUIRE(page);
	memset(page, 0, PAGE);
	*(struct exmap_range *)page = (struct exmap_range) {
		.first = first, .count = count,
	};
	REQUIRE(ioctl(w->uffd, UFFDIO_COPY, &copy) == 0);
	pthread_join(w->thread, NULL);
	close(w->uffd);
	munmap(w->ranges, HELD + PAGE);
	free(page);
}

static void remapped(void)
{
	for (int round = 0; round < 4; round++) {
		bool free = round & 1, in_place = round & 2;
		struct waiting w;
		struct map m;
		char *old;

		map_create(&m, -1, 1, 64, 64);
		EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 8, NULL), 0);
		begin_waiting(&w, m.fd, free ? EXMAP_OP_FREE : EXMAP_OP_ALLOC);
		old = m.base;
		EXPECT_EQ(munmap(m.base, m.pages * PAGE), 0);
		if (!in_place)
			REQUIRE(mmap(old, m.pages * PAGE, PROT_NONE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
				     -1, 0) == old);
		m.base = mmap(in_place ? old : NULL, m.pages * PAGE,
			      PROT_READ | PROT_WRITE,
			      MAP_SHARED | (in_place ? MAP_FIXED : 0), m.fd, 0);
		REQUIRE(m.base != MAP_FAILED && (m.base == old) == in_place);
		EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 30, 4, NULL), 0);
		for (int i = 30; i < 34; i++)
			stamp(m.base + i * PAGE, i);
		/* ALLOC beside the new pages, FREE of one of them. */
		end_waiting(&w, free ? 30 : 34, free ? 1 : 4);
		EXPECT_EQ(w.result, -1);
		EXPECT_EQ(w.error, EINVAL);
		EXPECT_EQ(count_mapped(&m, 0, 64), 4);
		for (int i = 30; i < 34; i++)
			EXPECT(stamped(m.base + i * PAGE, i));
		EXPECT_EQ(one(&m, 0, EXMAP_OP_FREE, 0, 64, NULL), 0);
		EXPECT_EQ(drain(&m, 0, 0), 64);
		map_destroy(&m);
	}
}

/* Refused, advised, forked: none of it ends a call, or changes its result. */
static void disturbed(void)
{
	unsigned char core[8];
	struct waiting w;
	struct map m;
	pid_t pid;
	int status;

	map_create(&m, -1, 2, 64, 64);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 16, NULL), 0);
	begin_waiting(&w, m.fd, EXMAP_OP_FREE);
	EXPECT_EQ(count_mapped(&m, 0, 16), 8);
	EXPECT(mremap(m.base, 64 * PAGE, 128 * PAGE, MREMAP_MAYMOVE) ==
	       MAP_FAILED);
	EXPECT_ERRNO(mprotect(m.base, 64 * PAGE, PROT_READ), EINVAL);
	EXPECT_ERRNO(munmap(m.base, PAGE), EINVAL);
	for (int advice = MADV_COLD; advice <= MADV_PAGEOUT; advice++)
		madvise(m.base, 64 * PAGE, advice);
	mincore(m.base, 8 * PAGE, core);
	pid = fork();
	if (!pid)
		_exit(mapped(m.base + 8 * PAGE));
	REQUIRE(waitpid(pid, &status, 0) == pid);
	EXPECT_EQ(status, 0);
	EXPECT_EQ(madvise(m.base + 8 * PAGE, 4 * PAGE, MADV_DONTNEED), 0);
	EXPECT_EQ(one(&m, 1, EXMAP_OP_FREE, 12, 1, NULL), 0);
	end_waiting(&w, 8, 8);
	EXPECT_EQ(w.result, 0);
	EXPECT_EQ(w.batch.ranges_failed, 0);
	/* 8 before it waited, and what the others had left of 8 more. */
	EXPECT_EQ(w.batch.pages_done, 8 + 3);
	EXPECT_EQ(drain(&m, 0, 0), 64);
	map_destroy(&m);
}

static void end_with_call(void *data)
{
	int how = *(int *)data;
	struct waiting w;
	struct map m;

	map_create(&m, -1, 1, 2000, 4096);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 100, 1500, NULL), 0);
	begin_waiting(&w, m.fd, how & 1 ? EXMAP_OP_FREE : EXMAP_OP_ALLOC);
	switch (how / 2) {
	case 0:
		_exit(0);
	case 1:
		execl("/bin/busybox", "true", NULL);
		_exit(1);
	default:
		kill(getpid(), SIGKILL);
		pause();
	}
}

static void ended(void)
{
	unsigned long before = 0, after;

	for (int round = 0; round < 24; round++) {
		int how = round % 6;
		double start = now();

		if (round == 6)
			before = free_kib();
		EXPECT_EQ(in_child(end_with_call, &how), how < 4 ? 0 : -1);
		EXPECT(now() - start < 60);
	}
	after = free_kib();
	/* 18 pools have 140 MB. */
	if (after + slack_kib() < before)
		note_failure(__FILE__, __LINE__, "%lu KiB are gone",
			     before - after);
}

/* ---- pread at an address of the area while the area moves ---- */

static char *first_place;

static void *alloc_at_first(void *unused)
{
	(void)unused;
	while (!over)
		pread(area.fd, first_place, PAGE, EXMAP_OP_ALLOC << 8);
	return NULL;
}

/* Addresses are the program's words: they mean no other place of the area. */
static void moved_under_pread(void)
{
	const char *seconds = getenv("EXMAP_SECONDS");
	double end = now() + 5 + (seconds ? atoi(seconds) : 5);
	unsigned long rounds = 0;
	char *second;
	pthread_t threads[2];

	map_create(&area, -1, 1, 64, 64);
	first_place = area.base;
	second = mmap(NULL, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
		      -1, 0);
	REQUIRE(second != MAP_FAILED);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, alloc_at_first, NULL);
	for (; now() < end; rounds++) {
		munmap(area.base, 64 * PAGE);
		/* One call, so that the other threads have little time. */
		area.base = mmap(second, 64 * PAGE, PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_FIXED, area.fd, 0);
		REQUIRE(area.base == second);
		sched_yield();
		if (mapped(second))
			note_failure(__FILE__, __LINE__,
				     "round %lu: a page came elsewhere", rounds);
		munmap(second, 64 * PAGE);
		area.base = mmap(first_place, 64 * PAGE, PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_FIXED, area.fd, 0);
		REQUIRE(area.base == first_place);
		if (test_failed())
			break;
	}
	over = true;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	printf("# %lu rounds\n", rounds);
	map_destroy(&area);
}

const struct test nested_tests[] = {
	{ "what a FREE has cleared but not flushed is out of reach when another call returns",
	  found_empty_faults, NULL },
	{ "the same where loads see zeroes", found_empty_blank, NULL },
	{ "ALLOC of empty entries needs no flush, though others free meanwhile",
	  filled_beside_free, NULL },
	{ "a batch that goes on after munmap and mmap changes nothing there",
	  remapped, UFFD_SYSCTL },
	{ "a batch goes on after refused calls, advice, fork and others' FREE",
	  disturbed, UFFD_SYSCTL },
	{ "exit, exec and SIGKILL in the middle of a batch free everything",
	  ended, UFFD_SYSCTL },
	{ "pread by an address where the area was does nothing where it is",
	  moved_under_pread, NULL },
	{ NULL, NULL, NULL },
};
