// SPDX-License-Identifier: GPL-2.0-only
/*
 * mm.c - the area under what else the kernel does with address spaces
 *
 * userfaultfd, munmap in the middle of a call, calls that take long. Each of
 * these tests failed once, before the rule that it tests was kept.
 */
#include <setjmp.h>

#include "test.h"
#include "uffd.h"

/* ---- munmap while a FREE waits ---- */

#define HELD_FROM 8UL		/* page of the ranges that userfaultfd holds */
#define HELD_TO 16UL

static struct exmap_batch waiting;
static int waiting_fd;
static sigjmp_buf fault;

static void *run_batch(void *unused)
{
	(void)unused;
	pin_to_cpu(0);
	ioctl(waiting_fd, EXMAP_IOCTL_BATCH, &waiting);
	return NULL;
}

static void on_fault(int signal)
{
	(void)signal;
	siglongjmp(fault, 1);
}

/*
 * Looks at the page without pause, so that this processor keeps its
 * translation, until the batch waits for its ranges. It may be gone before.
 */
static void keep_looking(int uffd, volatile char *page)
{
	struct sigaction action = { .sa_handler = on_fault };
	volatile bool there = true;
	double end = now() + 20;
	struct uffd_msg msg;

	sigaction(SIGSEGV, &action, NULL);
	if (sigsetjmp(fault, 1))
		there = false;
	while (read(uffd, &msg, sizeof(msg)) != sizeof(msg)) {
		REQUIRE(now() < end);
		if (there)
			(void)*page;
	}
	signal(SIGSEGV, SIG_DFL);
}

/*
 * FREE takes 8 pages out, again and again, and then waits for the range number
 * @split, which userfaultfd holds. Meanwhile the area goes, and other memory
 * comes to its addresses.
 */
static void unmap_under_free(char *at, unsigned long split)
{
	char *ranges_at = mmap(NULL, HELD_TO * PAGE, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct exmap_range *ranges = (void *)(ranges_at + HELD_FROM * PAGE);
	int uffd = uffd_open(0), mem = open("/proc/self/mem", O_RDONLY);
	struct uffdio_zeropage rest = {
		.range = { (uintptr_t)ranges, (HELD_TO - HELD_FROM) * PAGE },
	};
	struct map m = { .fd = exmap_open(), .base = at, .pages = 8 };
	volatile char *fresh;
	pthread_t thread;
	char seen = -1;

	REQUIRE(ranges_at != MAP_FAILED && uffd >= 0 && mem >= 0);
	REQUIRE(exmap_setup(m.fd, -1, 1, 64) == 0);
	REQUIRE(mmap(at, 8 * PAGE, PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_FIXED, m.fd, 0) == at);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 0, 8, NULL), 0);
	memset(at, 0x55, 8 * PAGE);
	ranges -= split;
	for (unsigned long i = 0; i < split; i++)
		ranges[i] = (struct exmap_range) { .first = i % 8, .count = 1 };
	REQUIRE(uffd_register(uffd, ranges + split, rest.range.len,
			      UFFDIO_REGISTER_MODE_MISSING) == 0);
	waiting_fd = m.fd;
	waiting = (struct exmap_batch) {
		.ranges = (uintptr_t)ranges, .nr_ranges = split + 1,
		.opcode = EXMAP_OP_FREE,
	};
	pthread_create(&thread, NULL, run_batch, NULL);
	keep_looking(uffd, at);

	EXPECT_EQ(munmap(at, 8 * PAGE), 0);
	fresh = mmap(at, 8 * PAGE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	REQUIRE(fresh == at);
	EXPECT_EQ(*fresh, 0);
	*fresh = 0x77;
	REQUIRE(pread(mem, &seen, 1, (uintptr_t)fresh) == 1);
	EXPECT_EQ(seen, 0x77);

	REQUIRE(ioctl(uffd, UFFDIO_ZEROPAGE, &rest) == 0);
	pthread_join(thread, NULL);
	close(uffd);
	close(mem);
	close(m.fd);
	munmap(ranges_at, HELD_TO * PAGE);
}

static void unmapped_under_free(void)
{
	const unsigned long table = 512 * PAGE;
	char *room = mmap(NULL, 2 * table, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *base = (char *)(((uintptr_t)room + table - 1) & ~(table - 1));

	REQUIRE(sysconf(_SC_NPROCESSORS_ONLN) > 1 && room != MAP_FAILED);
	/* Neighbours, so that no page table goes and takes a flush along. */
	madvise(room, 2 * table, MADV_NOHUGEPAGE);
	base[0] = 1;
	base[100 * PAGE] = 1;
	pin_to_cpu(1);
	for (int i = 0; i < 5; i++) {
		unmap_under_free(base + 16 * PAGE, 64);
		unmap_under_free(base + 16 * PAGE, 512);
		unmap_under_free(base + 16 * PAGE, 1024);
	}
}

/* ---- write-protection by userfaultfd ---- */

static struct map watched;
static int watcher;
static volatile bool stop;

static int protect(bool on)
{
	struct uffdio_writeprotect wp = {
		.range = { (uintptr_t)watched.base, watched.pages * PAGE },
		.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0,
	};

	return ioctl(watcher, UFFDIO_WRITEPROTECT, &wp);
}

static void *protect_all(void *unused)
{
	(void)unused;
	while (!stop) {
		protect(true);
		protect(false);
	}
	return NULL;
}

static void *alloc_singly(void *data)
{
	int iface = *(int *)data;

	while (!stop) {
		many(&watched, iface, EXMAP_OP_ALLOC, 0, 1, 64);
		if (iface == 1)
			many(&watched, 1, EXMAP_OP_FREE, 0, 1, 64);
	}
	return NULL;
}

/*
 * Kernels that let userfaultfd watch the area (6.7 to 6.12.100 or so) write
 * into entries that are empty, and rewrite those that are not.
 */
static void watched_by_userfaultfd(void)
{
	const char *seconds = getenv("EXMAP_SECONDS");
	int ifaces[2] = { 1, 2 };
	pthread_t threads[3];
	int done;

	watcher = uffd_open(UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED);
	map_create(&watched, -1, 3, 4096, 64);
	if (watcher < 0 ||
	    uffd_register(watcher, watched.base, 64 * PAGE,
			  UFFDIO_REGISTER_MODE_WP)) {
		printf("# this kernel lets userfaultfd watch no area\n");
		return;
	}
	/* What it leaves in empty entries is not in ALLOC's way. */
	EXPECT_EQ(protect(true), 0);
	EXPECT_EQ(one(&watched, 0, EXMAP_OP_ALLOC, 0, 8, &done), 0);
	EXPECT_EQ(done, 8);
	memset(watched.base, 1, 8 * PAGE);
	EXPECT(load_faults(watched.base + 8 * PAGE));

	pthread_create(&threads[0], NULL, protect_all, NULL);
	pthread_create(&threads[1], NULL, alloc_singly, &ifaces[0]);
	pthread_create(&threads[2], NULL, alloc_singly, &ifaces[1]);
	sleep(5 + (seconds ? atoi(seconds) : 5));
	stop = true;
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	protect(false);
	EXPECT_EQ(many(&watched, 0, EXMAP_OP_FREE, 0, 1, 64) >= 0, 1);
	EXPECT_EQ(counters(&watched).pages_free, 4096);
	close(watcher);
	map_destroy(&watched);
}

/* ---- calls that take long ---- */

static void vacant(void)
{
	const unsigned long pages = 1UL << 30;
	double start, advised, freed;
	struct map m;

	map_create(&m, -1, 1, 16, pages);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, pages / 2 + 7, 1, NULL), 0);
	start = now();
	EXPECT_EQ(madvise(m.base, pages * PAGE, MADV_DONTNEED), 0);
	advised = now() - start;
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, pages / 2 + 9, 1, NULL), 0);
	start = now();
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, pages, NULL), 0);
	freed = now() - start;
	printf("# 4 TiB, one page there: MADV_DONTNEED %.1f ms, FREE %.1f ms\n",
	       advised * 1e3, freed * 1e3);
	EXPECT(freed < 0.1);
	EXPECT_EQ(drain(&m, 0, 0), 16);
	map_destroy(&m);
}

#define LONG_PAGES 20000UL
#define LONG_RANGES 65536UL

/* ALLOC of pages that are there, for minutes. */
static void alloc_for_long(int ready)
{
	struct exmap_range *ranges = calloc(LONG_RANGES, sizeof(*ranges));
	struct exmap_batch batch = {
		.ranges = (uintptr_t)ranges, .nr_ranges = LONG_RANGES,
		.opcode = EXMAP_OP_ALLOC,
	};
	struct map m;

	map_create(&m, -1, 1, LONG_PAGES, LONG_PAGES);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 0, LONG_PAGES, NULL), 0);
	for (unsigned long i = 0; i < LONG_RANGES; i++)
		ranges[i].count = LONG_PAGES;
	REQUIRE(write(ready, "", 1) == 1);
	ioctl(m.fd, EXMAP_IOCTL_BATCH, &batch);
}

static void killed_in_long_call(void)
{
	expect_killed(alloc_for_long, 500);
}

const struct test mm_tests[] = {
	{ "when munmap has returned, what a FREE that waits took out is out of reach",
	  unmapped_under_free, UFFD_SYSCTL },
	{ "userfaultfd that watches the area loses no page of it",
	  watched_by_userfaultfd, UFFD_SYSCTL },
	{ "FREE passes quickly over what is vacant", vacant, NULL },
	{ "SIGKILL ends a call that takes long", killed_in_long_call, NULL },
	{ NULL, NULL, NULL },
};
