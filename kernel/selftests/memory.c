// SPDX-License-Identifier: GPL-2.0-only
/* memory.c - the area among the other mappings: fork, munmap, exit, advice */
#include <sys/syscall.h>

#include "test.h"

/* A number after @name in the file @path, in units of @unit, as pages. */
static long pages_in(const char *path, const char *name, long unit)
{
	char line[256];
	long value = -1;
	FILE *file = fopen(path, "r");

	REQUIRE(file);
	while (fgets(line, sizeof(line), file)) {
		if (!strncmp(line, name, strlen(name)))
			value = atol(line + strlen(name));
	}
	fclose(file);
	return value * unit / (long)PAGE;
}

static void isolated(void)
{
	struct map a, b;

	map_create(&a, -1, 1, 32, 64);
	map_create(&b, -1, 1, 32, 64);
	EXPECT_EQ(many(&a, 0, EXMAP_OP_ALLOC, 0, 1, 32), 32);
	memset(a.base, 1, 32 * PAGE);
	EXPECT_EQ(one(&a, 0, EXMAP_OP_ALLOC, 40, 1, NULL), -ENOMEM);
	EXPECT_EQ(count_mapped(&b, 0, 64), 0);
	EXPECT_EQ(many(&b, 0, EXMAP_OP_ALLOC, 0, 1, 32), 32);
	for (int i = 0; i < 32; i++)
		EXPECT_EQ(b.base[i * PAGE], 0);
	/* Addresses of one are nothing to the other. */
	EXPECT_ERRNO(pread(a.fd, b.base, PAGE, EXMAP_OP_FREE << 8), EINVAL);
	map_destroy(&a);
	EXPECT_EQ(count_mapped(&b, 0, 64), 32);
	EXPECT_EQ(many(&b, 0, EXMAP_OP_FREE, 0, 1, 32), 32);
	map_destroy(&b);
}

static void child_body(void *data)
{
	struct map *m = data;
	struct exmap_action_params params = {
		.iov_len = 1, .opcode = EXMAP_OP_ALLOC,
	};
	struct exmap_counters c;

	for (unsigned long p = 0; p < m->pages; p++)
		EXPECT(!mapped(m->base + p * PAGE));
	EXPECT(!mapped(m->iface[0]));
	EXPECT_ERRNO(ioctl(m->fd, EXMAP_IOCTL_ACTION, &params), EPERM);
	EXPECT_ERRNO(ioctl(m->fd, EXMAP_IOCTL_COUNTERS, &c), EPERM);
	EXPECT_ERRNO(pread(m->fd, m->base, PAGE, EXMAP_OP_ALLOC << 8), EPERM);
	EXPECT_ERRNO(mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED,
			  m->fd, 0), EPERM);
	EXPECT_ERRNO(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED,
			  m->fd, EXMAP_OFF_INTERFACE(0)), EPERM);
	EXPECT_ERRNO(exmap_setup(m->fd, -1, 1, 1), EPERM);
	close(m->fd);
}

static void fork_inherits_nothing(void)
{
	struct map m;

	map_create(&m, -1, 1, 32, 64);
	EXPECT_EQ(many(&m, 0, EXMAP_OP_ALLOC, 0, 1, 20), 20);
	memset(m.base, 1, 20 * PAGE);
	EXPECT_EQ(in_child(child_body, &m), 0);
	/* Even if the program asks for it. */
	allow_fork(&m);
	EXPECT_EQ(in_child(child_body, &m), 0);
	EXPECT_EQ(count_mapped(&m, 0, 64), 20);
	EXPECT_EQ(m.base[19 * PAGE], 1);
	EXPECT_EQ(many(&m, 0, EXMAP_OP_FREE, 0, 1, 20), 20);
	EXPECT_EQ(drain(&m, 0, 0), 32);
	map_destroy(&m);
}

static void refused(void)
{
	struct map m;
	char *elsewhere, *end;

	map_create(&m, -1, 1, 64, 64);
	end = m.base + m.pages * PAGE;
	EXPECT_EQ(many(&m, 0, EXMAP_OP_ALLOC, 0, 1, 64), 64);
	for (int i = 0; i < 64; i++)
		stamp(m.base + i * PAGE, i);

	EXPECT_ERRNO(munmap(m.base, PAGE), EINVAL);
	EXPECT_ERRNO(munmap(end - PAGE, PAGE), EINVAL);
	EXPECT_ERRNO(munmap(m.base + 8 * PAGE, 8 * PAGE), EINVAL);
	EXPECT(mmap(m.base + PAGE, PAGE, PROT_READ, MAP_FIXED | MAP_PRIVATE |
		    MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
	EXPECT_ERRNO(mprotect(m.base, m.pages * PAGE, PROT_READ), EINVAL);
	EXPECT_ERRNO(mprotect(m.base, m.pages * PAGE, PROT_NONE), EINVAL);
	EXPECT_ERRNO(mprotect(m.base + PAGE, PAGE, PROT_READ), EINVAL);
	EXPECT_ERRNO(mprotect(m.base, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC),
		     EINVAL);

	elsewhere = mmap(NULL, 256 * PAGE, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	REQUIRE(elsewhere != MAP_FAILED);
	EXPECT(mremap(m.base, 64 * PAGE, 128 * PAGE, MREMAP_MAYMOVE) ==
	       MAP_FAILED);
	EXPECT(mremap(m.base, 64 * PAGE, 32 * PAGE, MREMAP_MAYMOVE) ==
	       MAP_FAILED);
	EXPECT(mremap(m.base, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE |
		      MREMAP_FIXED, elsewhere) == MAP_FAILED);
	EXPECT(mremap(m.base + PAGE, PAGE, PAGE, MREMAP_MAYMOVE |
		      MREMAP_FIXED, elsewhere) == MAP_FAILED);
	EXPECT(mremap(m.base, 0, 64 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	EXPECT(mremap(m.base, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE |
		      4 /* DONTUNMAP */, NULL) == MAP_FAILED);
	EXPECT_EQ(syscall(SYS_remap_file_pages, m.base + PAGE, PAGE, 0, 1, 0),
		  -1);
	EXPECT_EQ(syscall(SYS_remap_file_pages, m.base, PAGE, 0, 5, 0), -1);
	for (int i = 0; i < 64; i++)
		EXPECT(mapped(m.base + i * PAGE) &&
		       stamped(m.base + i * PAGE, i));
	EXPECT_EQ(many(&m, 0, EXMAP_OP_FREE, 0, 1, 64), 64);
	EXPECT_EQ(drain(&m, 0, 0), 64);
	map_destroy(&m);
}

/* Whatever the advice, it is refused, or no page is lost by it. */
static void advice(void)
{
	struct map m;

	map_create(&m, -1, 2, 100, 1024);
	for (int a = 0; a <= 25; a++) {
		EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 500, 100, NULL), 0);
		madvise(m.base, m.pages * PAGE, a);
		madvise(m.base + 510 * PAGE, 20 * PAGE, a);
		EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 1024, NULL), 0);
		long had = drain(&m, 1, 0);

		if (had != 100)
			note_failure(__FILE__, __LINE__,
				     "after advice %d, %ld pages", a, had);
	}
	map_destroy(&m);
}

/* Locking, and the kernel's tracking of what was written. */
static void locked_and_tracked(void)
{
	FILE *file;
	struct map m;

	EXPECT_EQ(mlockall(MCL_CURRENT | MCL_FUTURE), 0);
	map_create(&m, -1, 1, 100, 1024);
	EXPECT_EQ(pages_in("/proc/self/smaps_rollup", "Locked:", 1024) < 1024, 1);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 0, 100, NULL), 0);
	mlock(m.base, m.pages * PAGE);
	mlock(m.base + PAGE, PAGE);
	munlock(m.base, m.pages * PAGE);
	EXPECT_EQ(munlockall(), 0);

	for (int how = 1; how <= 4; how++) {
		file = fopen("/proc/self/clear_refs", "w");
		REQUIRE(file);
		fprintf(file, "%d", how);
		fclose(file);
		for (int i = 0; i < 50; i++)
			stamp(m.base + i * PAGE, how * 100 + i);
		EXPECT_EQ(many(&m, 0, EXMAP_OP_FREE, 50, 1, 50), 50);
		EXPECT_EQ(many(&m, 0, EXMAP_OP_ALLOC, 50, 1, 50), 50);
		for (int i = 50; i < 100; i++)
			stamp(m.base + i * PAGE, how * 100 + i);
		for (int i = 0; i < 100; i++)
			EXPECT(stamped(m.base + i * PAGE, how * 100 + i));
	}
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 1024, NULL), 0);
	EXPECT_EQ(drain(&m, 0, 0), 100);
	map_destroy(&m);
}

static void dontneed(void)
{
	struct map m;

	map_create(&m, -1, 1, 100, 1024);
	for (int round = 0; round < 20; round++) {
		EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 0, 100, NULL), 0);
		memset(m.base, 1, 100 * PAGE);
		EXPECT_EQ(madvise(m.base, 50 * PAGE, MADV_DONTNEED), 0);
		EXPECT_EQ(count_mapped(&m, 0, 200), 50);
		EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 200, 50, NULL), 0);
		EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 300, 1, NULL),
			  -ENOMEM);
		EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 1024, NULL), 0);
	}
	EXPECT_EQ(counters(&m).recovered, 1000);
	/* The page of an interface comes back by itself. */
	EXPECT_EQ(madvise(m.iface[0], PAGE, MADV_DONTNEED), 0);
	EXPECT_EQ(drain(&m, 0, 0), 100);
	map_destroy(&m);
}

static void unmapped_and_again(void)
{
	struct map m;

	map_create(&m, -1, 4, 1000, 1024);
	for (int round = 0; round < 10; round++) {
		EXPECT_EQ(batch_one(&m, round % 4, EXMAP_OP_ALLOC, 0, 1000,
				    NULL), 0);
		EXPECT_EQ(munmap(m.base, m.pages * PAGE), 0);
		EXPECT_EQ(counters(&m).pages_free, 1000);
		EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 1, NULL), -EINVAL);
		m.base = mmap(NULL, m.pages * PAGE, PROT_READ | PROT_WRITE,
			      MAP_SHARED, m.fd, 0);
		REQUIRE(m.base != MAP_FAILED);
		EXPECT_EQ(count_mapped(&m, 0, 10), 0);
		EXPECT_EQ(drain(&m, round % 4, 0), 1000);
	}
	map_destroy(&m);
}

/* A bit for each order of letting go; the rest is left to exit. */
static void let_go(void *data)
{
	int order = *(int *)data;
	struct map m;

	map_create(&m, -1, 2, 2000, 4096);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 100, 1500, NULL), 0);
	memset(m.base + 100 * PAGE, 1, 1500 * PAGE);
	for (int step = 0; step < 3; step++) {
		switch (order % 4) {
		case 0:
			munmap(m.base, m.pages * PAGE);
			break;
		case 1:
			close(m.fd);
			break;
		case 2:
			munmap(m.iface[0], PAGE);
			munmap(m.iface[1], PAGE);
			break;
		default:
			return;
		}
		order /= 4;
	}
}

static void any_order(void)
{
	unsigned long before, after;

	for (int order = 0; order < 64; order++)
		EXPECT_EQ(in_child(let_go, &order), 0);
	before = free_kib();
	for (int order = 0; order < 64; order++)
		EXPECT_EQ(in_child(let_go, &order), 0);
	after = free_kib();
	/* 64 pools have 500 MB. */
	if (after + slack_kib() < before)
		note_failure(__FILE__, __LINE__, "%lu KiB are gone",
			     before - after);
}

static volatile bool stop;

struct worker {
	struct map *m;
	int iface;
	bool read;
};

static void *toil(void *data)
{
	struct worker *w = data;
	uint64_t random = w->iface;

	while (!stop) {
		unsigned long first = random_u64(&random) % (w->m->pages - 64);

		if (w->read)
			pread(w->m->fd, w->m->base + first * PAGE, 8 * PAGE,
			      w->iface);
		many(w->m, w->iface, EXMAP_OP_ALLOC, first, 1, 64);
		many(w->m, w->iface, EXMAP_OP_FREE, first, 1, 64);
	}
	return NULL;
}

static void start_toil(struct map *m, struct worker *w, pthread_t *threads)
{
	for (int i = 0; i < 4; i++) {
		w[i] = (struct worker) { m, i, !access(DISK, R_OK) && i % 2 };
		pthread_create(&threads[i], NULL, toil, &w[i]);
	}
}

static int disk_or_none(void)
{
	return access(DISK, R_OK) ? -1 : open_disk();
}

static void unmap_while_busy(void)
{
	struct worker w[4];
	pthread_t threads[4];
	struct map m;

	map_create(&m, disk_or_none(), 4, 1000, 4096);
	start_toil(&m, w, threads);
	for (int round = 0; round < 100; round++) {
		usleep(3000);
		/* In place, so that the workers' addresses stay good. */
		EXPECT_EQ(munmap(m.base, m.pages * PAGE), 0);
		REQUIRE(mmap(m.base, m.pages * PAGE, PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_FIXED_NOREPLACE, m.fd, 0) ==
			m.base);
	}
	stop = true;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 4096, NULL), 0);
	usleep(50000);
	EXPECT_EQ(drain(&m, 0, 0), 1000);
	map_destroy(&m);
}

static void die_busy(void *data)
{
	struct worker w[4];
	pthread_t threads[4];
	struct map m;

	(void)data;
	map_create(&m, disk_or_none(), 4, 1000, 4096);
	start_toil(&m, w, threads);
	usleep(30000);
	kill(getpid(), SIGKILL);
	pause();
}

static void killed_while_busy(void)
{
	unsigned long before = 0, after;

	for (int round = 0; round < 20; round++) {
		if (round == 5)
			before = free_kib();
		EXPECT_EQ(in_child(die_busy, NULL), -1);
	}
	after = free_kib();
	if (after + slack_kib() < before)
		note_failure(__FILE__, __LINE__, "%lu KiB are gone",
			     before - after);
}

static void exec_body(void *data)
{
	struct map m;

	(void)data;
	map_create(&m, -1, 1, 100, 100);
	fcntl(m.fd, F_SETFD, 0);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 0, 100, NULL), 0);
	execl("/bin/busybox", "true", NULL);
	_exit(1);
}

static void exec(void)
{
	EXPECT_EQ(in_child(exec_body, NULL), 0);
}

#define OWNERS 8
#define OWNER_PAGES 2000

/* Owners that have set an area up, of which another process has the file. */
static void outlived(void)
{
	unsigned long before, after;
	int files[OWNERS];

	for (int round = 0; round < 2; round++) {
		before = free_kib();
		for (int i = 0; i < OWNERS; i++) {
			pid_t pid;
			int status;

			files[i] = exmap_open();
			pid = fork();
			if (!pid) {
				/* Every other one has it mapped, too. */
				if (i % 2)
					mmap(NULL, 64 * PAGE,
					     PROT_READ | PROT_WRITE, MAP_SHARED,
					     files[i], 0);
				_exit(exmap_setup(files[i], -1, 1, OWNER_PAGES) != 0);
			}
			REQUIRE(waitpid(pid, &status, 0) == pid);
			EXPECT_EQ(status, 0);
		}
		after = free_kib();
		/* The first round pays for what the kernel keeps. */
		if (round && after + slack_kib() < before)
			note_failure(__FILE__, __LINE__, "%lu KiB of %lu are held",
				     before - after, OWNERS * OWNER_PAGES * 4UL);
		/* The areas are of no use to other processes. */
		for (int i = 0; i < OWNERS; i++) {
			EXPECT_ERRNO(exmap_setup(files[i], -1, 1, 1), EPERM);
			close(files[i]);
		}
	}
}

#define CGROUP "/sys/fs/cgroup/exmap-test"

/* The kernel gathers these counts lazily, and keeps some on each processor. */
static void expect_near(const char *what, long have, long want)
{
	if (have < want - 400 || have > want + 400)
		note_failure(__FILE__, __LINE__, "%s: %ld pages, not about %ld",
			     what, have, want);
}

static void expect_counts(const char *when, long base, long charged, long held)
{
	char text[64];

	sleep(3);
	snprintf(text, sizeof(text), "%s: charged", when);
	expect_near(text, pages_in(CGROUP "/memory.current", "", 1), charged);
	snprintf(text, sizeof(text), "%s: mapped, of the group", when);
	expect_near(text, pages_in(CGROUP "/memory.stat", "file_mapped", 1),
		    held);
	snprintf(text, sizeof(text), "%s: mapped, of all", when);
	expect_near(text, pages_in("/proc/meminfo", "Mapped:", 1024) - base,
		    held);
	snprintf(text, sizeof(text), "%s: resident", when);
	expect_near(text, pages_in("/proc/self/status", "RssFile:", 1024), held);
}

static void accounting(void)
{
	FILE *file;
	struct map m;
	long base;

	mkdir(CGROUP, 0755);
	file = fopen(CGROUP "/cgroup.procs", "w");
	REQUIRE(file && fprintf(file, "%d\n", getpid()) > 0);
	REQUIRE(fclose(file) == 0);
	base = pages_in("/proc/meminfo", "Mapped:", 1024);
	map_create(&m, -1, 1, 6000, 8192);
	expect_counts("after SETUP", base, 6000, 0);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 0, 6000, NULL), 0);
	expect_counts("after ALLOC", base, 6000, 6000);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 2000, NULL), 0);
	EXPECT_EQ(madvise(m.base + 2000 * PAGE, 2000 * PAGE, MADV_DONTNEED), 0);
	expect_counts("after FREE and MADV_DONTNEED", base, 6000, 2000);
	map_destroy(&m);
	expect_counts("at the end", base, 0, 0);
}

/* VmHWM, and what getrusage() tells. The kernel counts with some slack. */
static void peak(void)
{
	struct map m;

	map_create(&m, -1, 1, 6000, 8192);
	EXPECT(pages_in("/proc/self/status", "VmHWM:", 1024) < 6000);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 0, 6000, NULL), 0);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 6000, NULL), 0);
	EXPECT(pages_in("/proc/self/status", "VmHWM:", 1024) > 5700);
	EXPECT(pages_in("/proc/self/status", "VmRSS:", 1024) < 3000);
	map_destroy(&m);
}

const struct test memory_tests[] = {
	{ "pages are charged to the memory group, and counted where they are mapped",
	  accounting, "/sys/fs/cgroup/memory.stat" },
	{ "the peak of the resident set is remembered after FREE", peak, NULL },
	{ "areas of one process know nothing of each other", isolated, NULL },
	{ "a forked child inherits nothing and may do nothing",
	  fork_inherits_nothing, NULL },
	{ "partial munmap, mprotect and mremap are refused and change nothing",
	  refused, NULL },
	{ "no advice loses a page", advice, NULL },
	{ "mlock, mlockall and clear_refs change nothing", locked_and_tracked,
	  NULL },
	{ "pages that MADV_DONTNEED took away come back to the pool", dontneed,
	  NULL },
	{ "munmap returns all pages to the pool, and the area can be mapped again",
	  unmapped_and_again, NULL },
	{ "munmap, close and exit in any order free everything", any_order,
	  NULL },
	{ "munmap in the middle of other threads' calls", unmap_while_busy,
	  NULL },
	{ "SIGKILL in the middle of calls frees everything", killed_while_busy,
	  NULL },
	{ "the pool ends with its owner, though others have the file", outlived,
	  NULL },
	{ "exec with the area mapped and the file inherited", exec, NULL },
	{ NULL, NULL, NULL },
};
