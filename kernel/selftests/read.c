// SPDX-License-Identifier: GPL-2.0-only
/* read.c - READ: content, short reads, failures, and pages that are pinned */
#include <sys/inotify.h>

#include "test.h"

/* Whether page @p of the area holds what page @p of the disk does. */
static bool from_disk(struct map *m, unsigned long p)
{
	return mapped(m->base + p * PAGE) &&
	       stamped(m->base + p * PAGE, p ^ DISK_SEED);
}

/* How many of @nr pages do. */
static unsigned long count_read(struct map *m, unsigned long first,
				unsigned long nr)
{
	unsigned long sum = 0;

	for (unsigned long p = first; p < first + nr; p++)
		sum += from_disk(m, p);
	return sum;
}

/* An area that reads from the disk @path. */
static void create_on(struct map *m, const char *path, int ifaces,
		      unsigned long pool, unsigned long pages)
{
	int file = open(path, O_RDONLY | O_DIRECT);

	REQUIRE(file >= 0);
	map_create(m, file, ifaces, pool, pages);
}

/* Frees the whole area; expects that then interface @i can have @nr pages. */
static void expect_all_back(struct map *m, int i, long nr)
{
	EXPECT_EQ(batch_one(m, i, EXMAP_OP_FREE, 0, m->pages, NULL), 0);
	EXPECT_EQ(drain(m, i, 0), nr);
}

static void by_pread(void)
{
	struct map m;

	map_create(&m, open_disk(), 2, 1000, DISK_PAGES);
	EXPECT_EQ(pread(m.fd, m.base + 77 * PAGE, PAGE, 1), PAGE);
	EXPECT(from_disk(&m, 77));
	EXPECT_EQ(pread(m.fd, m.base + 500 * PAGE, 700 * PAGE, 0), 700 * PAGE);
	EXPECT_EQ(count_read(&m, 500, 700), 700);
	EXPECT_EQ(count_mapped(&m, 0, DISK_PAGES), 701);
	EXPECT_EQ(counters(&m).read, 701);
	expect_all_back(&m, 0, 1000);
	map_destroy(&m);
}

static void by_preadv(void)
{
	struct iovec iov[200];
	struct map m;

	map_create(&m, open_disk(), 1, 1000, DISK_PAGES);
	for (int i = 0; i < 200; i++) {
		iov[i].iov_base = m.base + ((i * 37 + 5) % 2000) * 2 * PAGE;
		iov[i].iov_len = (i % 7 ? 1 : 0) * PAGE;
	}
	EXPECT_EQ(preadv(m.fd, iov, 200, 0), 171 * PAGE);
	for (int i = 0; i < 200; i++) {
		if (i % 7)
			EXPECT(from_disk(&m, ((i * 37 + 5) % 2000) * 2));
	}
	EXPECT_EQ(count_mapped(&m, 0, DISK_PAGES), 171);
}

static void by_action(void)
{
	struct map m;

	map_create(&m, open_disk(), 1, 1000, DISK_PAGES);
	EXPECT_EQ(many(&m, 0, EXMAP_OP_READ, 3, 8, 500), 500);
	for (int i = 0; i < 500; i++)
		EXPECT(from_disk(&m, 3 + 8 * i));
	EXPECT_EQ(count_mapped(&m, 0, DISK_PAGES), 500);
}

static void by_batch(void)
{
	struct exmap_range r[4] = {
		{ .first = 10, .count = 20 }, { .first = 4000, .count = 90 },
		{ .first = 4090, .count = 20 }, { .first = 20, .count = 5 },
	};
	struct exmap_batch b = { .ranges = (uintptr_t)r, .nr_ranges = 4 };
	struct map m;

	map_create(&m, open_disk(), 1, 1000, DISK_PAGES);
	EXPECT_EQ(ioctl(m.fd, EXMAP_IOCTL_BATCH, &b), 0);
	EXPECT_EQ(r[0].error, 0);
	EXPECT_EQ(r[0].done, 20);
	EXPECT_EQ(r[1].error, 0);
	EXPECT_EQ(r[1].done, 90);
	EXPECT_EQ(r[2].error, -EINVAL);
	EXPECT_EQ(r[3].error, -EEXIST);
	EXPECT_EQ(r[3].done, 0);
	EXPECT_EQ(b.pages_done, 110);
	EXPECT_EQ(b.ranges_failed, 2);
	EXPECT_EQ(count_read(&m, 10, 20), 20);
	EXPECT_EQ(count_read(&m, 4000, 90), 90);
	EXPECT_EQ(count_mapped(&m, 0, DISK_PAGES), 110);
}

static void over_mapped(void)
{
	struct iovec iov[3];
	unsigned long done;
	struct map m;

	map_create(&m, open_disk(), 1, 100, DISK_PAGES);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 15, 1, NULL), 0);
	memset(m.base + 15 * PAGE, 1, PAGE);
	EXPECT_EQ(pread(m.fd, m.base + 10 * PAGE, 10 * PAGE, 0), 5 * PAGE);
	EXPECT_EQ(count_mapped(&m, 0, 100), 6);
	EXPECT_EQ(count_read(&m, 10, 5), 5);
	EXPECT_EQ(m.base[15 * PAGE + 8], 1);
	EXPECT_ERRNO(pread(m.fd, m.base + 15 * PAGE, PAGE, 0), EEXIST);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_READ, 13, 5, &done), -EEXIST);
	EXPECT_EQ(done, 0);

	/* What lies beyond the gap was read, too, but is not left mapped. */
	for (int i = 0; i < 3; i++) {
		iov[i].iov_base = m.base + (40 - 13 * i) * PAGE;
		iov[i].iov_len = 4 * PAGE;
	}
	iov[1].iov_base = m.base + 12 * PAGE;
	EXPECT_EQ(preadv(m.fd, iov, 3, 0), 4 * PAGE);
	EXPECT_EQ(count_mapped(&m, 0, 100), 10);
	expect_all_back(&m, 0, 100);
}

static void past_the_end(void)
{
	char *page = aligned_alloc(PAGE, PAGE);
	int file = open("/tmp/short", O_RDWR | O_CREAT | O_TRUNC, 0600);
	struct map m;

	REQUIRE(file >= 0);
	memset(page, 5, PAGE);
	for (int i = 0; i < 3; i++)
		REQUIRE(write(file, page, PAGE) == PAGE);
	REQUIRE(write(file, page, 100) == 100);
	map_create(&m, file, 1, 16, 64);
	/* Dirty the pool, so that padding shows. */
	EXPECT_EQ(many(&m, 0, EXMAP_OP_ALLOC, 0, 1, 16), 16);
	memset(m.base, 6, 16 * PAGE);
	EXPECT_EQ(many(&m, 0, EXMAP_OP_FREE, 0, 1, 16), 16);

	EXPECT_EQ(pread(m.fd, m.base, 10 * PAGE, 0), 4 * PAGE);
	EXPECT_EQ(count_mapped(&m, 0, 64), 4);
	EXPECT_EQ(m.base[3 * PAGE - 1], 5);
	EXPECT_EQ(m.base[3 * PAGE + 99], 5);
	for (int i = 100; i < 4096; i++)
		EXPECT_EQ(m.base[3 * PAGE + i], 0);
	EXPECT_EQ(pread(m.fd, m.base + 4 * PAGE, PAGE, 0), 0);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_READ, 5, 2, NULL), -ENODATA);
	EXPECT_EQ(count_mapped(&m, 0, 64), 4);
	expect_all_back(&m, 0, 16);
	unlink("/tmp/short");
}

static void bad_blocks(void)
{
	struct iovec iov[3];
	unsigned long done;
	struct map m;

	create_on(&m, BAD_DISK, 1, 64, 64);
	EXPECT_EQ(pread(m.fd, m.base, PAGE, 0), PAGE);
	EXPECT_ERRNO(pread(m.fd, m.base + BAD_FIRST * PAGE, PAGE, 0), EIO);
	EXPECT(!mapped(m.base + BAD_FIRST * PAGE));
	for (int i = 0; i < 3; i++) {
		iov[i].iov_base = m.base + (16 + i) * PAGE;
		iov[i].iov_len = PAGE;
	}
	iov[1].iov_base = m.base + BAD_LAST * PAGE;
	EXPECT_EQ(preadv(m.fd, iov, 3, 0), PAGE);
	EXPECT_EQ(count_mapped(&m, 0, 64), 2);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_READ, BAD_FIRST, 1, &done), -EIO);
	EXPECT_EQ(done, 0);
	expect_all_back(&m, 0, 64);
}

static void exhausted(void)
{
	unsigned long done;
	struct map m;

	map_create(&m, open_disk(), 2, 50, DISK_PAGES);
	EXPECT_EQ(pread(m.fd, m.base, 80 * PAGE, 1), 50 * PAGE);
	EXPECT_EQ(count_read(&m, 0, 50), 50);
	EXPECT_EQ(count_mapped(&m, 0, 200), 50);
	EXPECT_ERRNO(pread(m.fd, m.base + 100 * PAGE, PAGE, 0), ENOMEM);
	EXPECT_ERRNO(pread(m.fd, m.base, PAGE, 0), EEXIST);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 10, NULL), 0);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_READ, 100, 11, &done), -ENOMEM);
	EXPECT_EQ(done, 10);
}

static void without_file(void)
{
	struct map m;

	map_create(&m, -1, 1, 16, 64);
	EXPECT_ERRNO(pread(m.fd, m.base, PAGE, 0), EINVAL);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_READ, 0, 1, NULL), -EINVAL);
	EXPECT_EQ(count_mapped(&m, 0, 64), 0);
}

static void direct_io(void)
{
	int disk = open_disk();
	char *check = aligned_alloc(PAGE, PAGE);
	const unsigned long scratch = DISK_PAGES + 7;
	struct map m;

	map_create(&m, -1, 1, 16, 64);
	EXPECT_EQ(many(&m, 0, EXMAP_OP_ALLOC, 0, 2, 8), 8);
	stamp(m.base + 4 * PAGE, 12345);
	EXPECT_EQ(pwrite(disk, m.base + 4 * PAGE, PAGE, scratch * PAGE), PAGE);
	EXPECT_EQ(pread(disk, check, PAGE, scratch * PAGE), PAGE);
	EXPECT(stamped(check, 12345));
	EXPECT_EQ(pread(disk, m.base + 6 * PAGE, PAGE, 9 * PAGE), PAGE);
	EXPECT(stamped(m.base + 6 * PAGE, 9 ^ DISK_SEED));
	/* A page that is not there is an error for the file, too. */
	EXPECT_ERRNO(pwrite(disk, m.base + 5 * PAGE, PAGE, scratch * PAGE),
		     EFAULT);
	EXPECT_ERRNO(pread(disk, m.base + 5 * PAGE, PAGE, 0), EFAULT);
}

static void pinned(void)
{
	struct iovec iov;
	int ends[2];
	char *copy = malloc(PAGE);
	struct map m;

	map_create(&m, -1, 2, 50, 200);
	REQUIRE(pipe(ends) == 0);
	EXPECT_EQ(many(&m, 0, EXMAP_OP_ALLOC, 0, 1, 3), 3);
	stamp(m.base + PAGE, 4711);
	iov.iov_base = m.base + PAGE;
	iov.iov_len = PAGE;
	REQUIRE(vmsplice(ends[1], &iov, 1, 0) == PAGE);

	EXPECT_EQ(many(&m, 0, EXMAP_OP_FREE, 0, 1, 3), 3);
	EXPECT_EQ(counters(&m).pages_parked, 1);
	/* All others can be had and overwritten; that one not. */
	for (int i = 0; i < 49; i++) {
		EXPECT_EQ(one(&m, 1, EXMAP_OP_ALLOC, 100 + i, 1, NULL), 0);
		memset(m.base + (100 + i) * PAGE, 1, PAGE);
	}
	EXPECT_EQ(one(&m, 1, EXMAP_OP_ALLOC, 180, 1, NULL), -ENOMEM);
	REQUIRE(read(ends[0], copy, PAGE) == PAGE);
	EXPECT(stamped(copy, 4711));
	EXPECT_EQ(one(&m, 1, EXMAP_OP_ALLOC, 180, 1, NULL), 0);
	EXPECT_EQ(counters(&m).pages_parked, 0);

	/* A pin may outlive the area. */
	stamp(m.base + 180 * PAGE, 4712);
	iov.iov_base = m.base + 180 * PAGE;
	REQUIRE(vmsplice(ends[1], &iov, 1, 0) == PAGE);
	map_destroy(&m);
	REQUIRE(read(ends[0], copy, PAGE) == PAGE);
	EXPECT(stamped(copy, 4712));
}

#define PARKED 4096UL

/* Others wait for the lock of the parked pages. */
static void parked_many(void)
{
	struct iovec iov = { .iov_len = PARKED * PAGE };
	int ends[2], counter;
	uint64_t taken = 0;
	struct map m;

	map_create(&m, -1, 1, PARKED, 2 * PARKED);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 0, PARKED, NULL), 0);
	REQUIRE(pipe(ends) == 0);
	REQUIRE(fcntl(ends[1], F_SETPIPE_SZ, PARKED * PAGE) > 0);
	iov.iov_base = m.base;
	REQUIRE(vmsplice(ends[1], &iov, 1, 0) == (ssize_t)iov.iov_len);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, PARKED, NULL), 0);
	EXPECT_EQ(counters(&m).pages_parked, PARKED);

	counter = open(LOCKS, O_RDONLY);
	REQUIRE(counter >= 0);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, PARKED, 1, NULL), -ENOMEM);
	REQUIRE(pread(counter, &taken, sizeof(taken), 0) == sizeof(taken));
	printf("# %lu parked pages: %lu locks taken\n", PARKED, taken);
	EXPECT(taken >= PARKED / 256);
	close(counter);

	close(ends[0]);
	close(ends[1]);
	EXPECT_EQ(drain(&m, 0, 0), PARKED);
	EXPECT_EQ(counters(&m).pages_parked, 0);
	map_destroy(&m);
}

struct reader {
	struct map *m;
	unsigned long page;
	ssize_t got;
	int error;
};

static void *read_slowly(void *data)
{
	struct reader *r = data;

	r->got = pread(r->m->fd, r->m->base + r->page * PAGE, PAGE, 0);
	r->error = errno;
	return NULL;
}

/* Starts a READ of @page, and waits until the page is there. */
static void start_reading(struct reader *r, struct map *m, unsigned long page,
			  pthread_t *thread)
{
	*r = (struct reader) { .m = m, .page = page };
	pthread_create(thread, NULL, read_slowly, r);
	while (!mapped(m->base + page * PAGE))
		usleep(1000);
}

static void freed_while_read(void)
{
	pthread_t thread;
	struct reader r;
	struct map m;

	create_on(&m, SLOW_DISK, 2, 20, 64);
	for (int how = 0; how < 4; how++) {
		bool bad = how & 1, advised = how & 2;
		unsigned long page = bad ? BAD_FIRST : 1;

		start_reading(&r, &m, page, &thread);
		usleep(50000);
		if (advised)
			EXPECT_EQ(madvise(m.base + page * PAGE, PAGE,
					  MADV_DONTNEED), 0);
		else
			EXPECT_EQ(one(&m, 1, EXMAP_OP_FREE, page, 1, NULL), 0);
		/* What advice took is looked for when the pool is empty. */
		EXPECT_EQ(many(&m, 1, EXMAP_OP_ALLOC, 20, 1, 20), 19);
		EXPECT_EQ(counters(&m).pages_parked, 1);
		for (int i = 20; i < 39; i++)
			stamp(m.base + i * PAGE, i);
		pthread_join(thread, NULL);
		EXPECT_EQ(r.got, bad ? -1 : (ssize_t)PAGE);
		EXPECT(!bad || r.error == EIO);
		for (int i = 20; i < 39; i++)
			EXPECT(stamped(m.base + i * PAGE, i));
		expect_all_back(&m, 1, 20);
	}
}

/* mremap() moves entries away and back before it is refused. */
static void refused_while_read(void)
{
	char *elsewhere = mmap(NULL, 64 * PAGE, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t thread;
	struct reader r;
	struct map m;

	REQUIRE(elsewhere != MAP_FAILED);
	create_on(&m, SLOW_DISK, 2, 20, 64);
	EXPECT_EQ(many(&m, 1, EXMAP_OP_ALLOC, 20, 1, 20), 20);
	memset(m.base + 20 * PAGE, 1, 20 * PAGE);
	EXPECT_EQ(many(&m, 1, EXMAP_OP_FREE, 20, 1, 20), 20);
	start_reading(&r, &m, 1, &thread);
	EXPECT(mremap(m.base, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE |
		      MREMAP_FIXED, elsewhere) == MAP_FAILED);
	EXPECT_ERRNO(mprotect(m.base, 64 * PAGE, PROT_READ), EINVAL);
	EXPECT_EQ(madvise(m.base + 2 * PAGE, 8 * PAGE, MADV_DONTNEED), 0);
	pthread_join(thread, NULL);
	EXPECT_EQ(r.got, PAGE);
	for (int i = 0; i < 4096; i++)
		EXPECT_EQ(m.base[PAGE + i], 0);
	EXPECT_EQ(count_mapped(&m, 0, 64), 1);
	expect_all_back(&m, 0, 20);
	map_destroy(&m);
}

#define SLOW_RANGES 2048

/* Half a second for each 64 of them. */
static void read_for_long(int ready)
{
	static struct exmap_range ranges[SLOW_RANGES];
	struct exmap_batch batch = {
		.ranges = (uintptr_t)ranges, .nr_ranges = SLOW_RANGES,
		.opcode = EXMAP_OP_READ,
	};
	struct map m;

	create_on(&m, SLOW_DISK, 1, SLOW_RANGES, SLOW_RANGES);
	for (int i = 0; i < SLOW_RANGES; i++)
		ranges[i] = (struct exmap_range) { .first = i, .count = 1 };
	REQUIRE(write(ready, "", 1) == 1);
	ioctl(m.fd, EXMAP_IOCTL_BATCH, &batch);
}

static void killed_in_long_read(void)
{
	expect_killed(read_for_long, 1000);
}

/* As by any other read: those that watch the file hear of it. */
static void watched(void)
{
	const char *path = "/tmp/watched";
	int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	int watch = inotify_init1(IN_NONBLOCK);
	struct inotify_event event;
	struct map m;

	REQUIRE(file >= 0 && watch >= 0);
	REQUIRE(ftruncate(file, 4 * PAGE) == 0);
	REQUIRE(inotify_add_watch(watch, path, IN_ACCESS) >= 0);
	map_create(&m, file, 1, 16, 64);
	EXPECT_EQ(read(watch, &event, sizeof(event)), -1);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_READ, 0, 2, NULL), 0);
	REQUIRE(read(watch, &event, sizeof(event)) == sizeof(event));
	EXPECT_EQ(event.mask, IN_ACCESS);
	map_destroy(&m);
	unlink(path);
}

/* 2 GiB and more at once, which no read() gives to a file system. */
static void too_long(void)
{
	const unsigned long pages = 1UL << 20;
	struct map m;

	map_create(&m, open_disk(), 1, 16, pages);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_READ, 0, pages / 2, NULL), -EINVAL);
	EXPECT_EQ(count_mapped(&m, 0, 16), 0);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_READ, 0, pages / 2 - 1, NULL),
		  -ENOMEM);
	EXPECT_EQ(count_mapped(&m, 0, 17), 16);
	map_destroy(&m);
}

/*
 * The area is unmapped during a READ that fails, something else put in its
 * place, and the area mapped elsewhere: what READ must undo is gone, and it
 * must not touch what is there instead.
 */
static void moved_while_read(void)
{
	pthread_t thread;
	struct reader r;
	char *other, *old;
	struct map m;

	create_on(&m, SLOW_DISK, 1, 20, 64);
	start_reading(&r, &m, BAD_FIRST, &thread);
	usleep(50000);
	old = m.base;
	EXPECT_EQ(munmap(m.base, m.pages * PAGE), 0);
	other = mmap(old, m.pages * PAGE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	REQUIRE(other == old);
	for (int i = 0; i < 64; i++)
		stamp(other + i * PAGE, i);
	m.base = mmap(NULL, m.pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED,
		      m.fd, 0);
	REQUIRE(m.base != MAP_FAILED && m.base != other);
	pthread_join(thread, NULL);
	EXPECT_EQ(r.got, -1);
	EXPECT_EQ(r.error, EIO);
	for (int i = 0; i < 64; i++)
		EXPECT(stamped(other + i * PAGE, i));
	EXPECT_EQ(drain(&m, 0, 0), 20);
	map_destroy(&m);
}

/* @data: whether by SIGKILL */
static void end_while_read(void *data)
{
	pthread_t thread;
	struct reader r;
	struct map m;

	create_on(&m, SLOW_DISK, 1, 20, 64);
	start_reading(&r, &m, 1, &thread);
	if (!*(bool *)data)
		_exit(0);
	usleep(50000);
	kill(getpid(), SIGKILL);
	pause();
}

static void exit_while_read(void)
{
	bool killed = true, left = false;

	EXPECT_EQ(in_child(end_while_read, &killed), -1);
	EXPECT_EQ(in_child(end_while_read, &left), 0);
}

const struct test read_tests[] = {
	{ "pread maps pages and fills them", by_pread, DISK },
	{ "preadv reads scattered pages", by_preadv, DISK },
	{ "ACTION reads scattered pages", by_action, DISK },
	{ "BATCH reads, and reports each range", by_batch, DISK },
	{ "READ stops at a mapped page, keeps it, and leaves none unread",
	  over_mapped, DISK },
	{ "READ past the end of the file pads with zeroes and maps no more",
	  past_the_end, NULL },
	{ "READ of a bad block reports it and leaves no page", bad_blocks,
	  BAD_DISK },
	{ "READ into an exhausted pool reads what it can", exhausted, DISK },
	{ "READ without a file is refused", without_file, NULL },
	{ "direct I/O works on mapped pages, and fails on others", direct_io,
	  DISK },
	{ "a page that something still holds is not handed out again", pinned,
	  NULL },
	{ "very many such pages are looked at some at a time", parked_many,
	  LOCKS },
	{ "a page freed or advised away while it is read is not handed out before that is over",
	  freed_while_read, SLOW_DISK },
	{ "a failed READ of an area that was mapped elsewhere meanwhile touches nothing",
	  moved_while_read, SLOW_DISK },
	{ "mprotect and mremap in the middle of a READ are refused and harmless",
	  refused_while_read, SLOW_DISK },
	{ "SIGKILL and exit in the middle of a READ", exit_while_read,
	  SLOW_DISK },
	{ "SIGKILL ends a READ of very many ranges", killed_in_long_read,
	  SLOW_DISK },
	{ "inotify tells of a READ", watched, NULL },
	{ "a READ of 2 GiB at once is refused", too_long, DISK },
	{ NULL, NULL, NULL },
};
