// SPDX-License-Identifier: GPL-2.0-only
/*
 * blank.c - EXMAP_FAULTS_BLANK: loads from what is not mapped see zeroes
 *
 * The last but one must fail with a module built with EXMAP_TEST_NO_FLUSH.
 */
#include "test.h"

/* As map_create(), with loads that never fault. */
static void blank_create(struct map *m, int backing, int ifaces,
			 unsigned long pool, unsigned long pages)
{
	map_create_with(m, EXMAP_FAULTS_BLANK, backing, ifaces, pool, pages);
}

static void choice(void)
{
	struct exmap_options bad = { .faults = 2 };
	struct exmap_version version;
	struct map m;
	int fd = exmap_open();

	REQUIRE(ioctl(fd, EXMAP_IOCTL_VERSION, &version) == 0);
	EXPECT(version.features & EXMAP_FEATURE_BLANK);
	EXPECT_ERRNO(ioctl(fd, EXMAP_IOCTL_OPTIONS, &bad), EINVAL);
	bad.faults = 0;
	bad.pad[2] = 1;
	EXPECT_ERRNO(ioctl(fd, EXMAP_IOCTL_OPTIONS, &bad), EINVAL);
	EXPECT_ERRNO(ioctl(fd, EXMAP_IOCTL_OPTIONS, NULL), EFAULT);
	/* Back and forth, until the area is mapped. */
	EXPECT_EQ(set_faults(fd, EXMAP_FAULTS_BLANK), 0);
	EXPECT_EQ(set_faults(fd, EXMAP_FAULTS_BLANK), 0);
	EXPECT_EQ(set_faults(fd, EXMAP_FAULTS_SIGNAL), 0);
	close(fd);
	map_create(&m, -1, 1, 8, 16);
	EXPECT_ERRNO(set_faults(m.fd, EXMAP_FAULTS_BLANK), EBUSY);
	EXPECT(load_faults(m.base));
	map_destroy(&m);
}

static void zeroes(void)
{
	struct map m;
	int done;

	blank_create(&m, -1, 2, 32, 64);
	for (unsigned long p = 0; p < 64; p++) {
		EXPECT(!load_faults(m.base + p * PAGE + 8 * p));
		EXPECT_EQ(m.base[p * PAGE + 8 * p], 0);
	}
	EXPECT_EQ(counters(&m).pages_free, 32);
	EXPECT_EQ(counters(&m).allocated, 0);
	/* What blank pages are, ALLOC and FREE take for nothing. */
	EXPECT_EQ(one(&m, 0, EXMAP_OP_FREE, 0, 64, &done), 0);
	EXPECT_EQ(done, 0);
	EXPECT_EQ(many(&m, 0, EXMAP_OP_ALLOC, 0, 1, 20), 20);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 32, &done), 0);
	EXPECT_EQ(done, 12);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 40, &done), -ENOMEM);
	EXPECT_EQ(done, 0);
	memset(m.base, 7, 32 * PAGE);
	EXPECT_EQ(counters(&m).pages_free, 0);
	EXPECT_EQ(one(&m, 1, EXMAP_OP_FREE, 0, 64, &done), 0);
	EXPECT_EQ(done, 32);
	/* What they held before is not to be seen. */
	for (unsigned long p = 0; p < 64 * PAGE; p += 512)
		EXPECT_EQ(m.base[p], 0);
	EXPECT_EQ(madvise(m.base, 32 * PAGE, MADV_DONTNEED), 0);
	EXPECT_EQ(m.base[PAGE], 0);
	EXPECT_EQ(drain(&m, 0, 0), 32);
	map_destroy(&m);
}

static void no_stores(void)
{
	int zero = open("/dev/zero", O_RDONLY), out[2];
	struct map m;

	blank_create(&m, -1, 1, 32, 64);
	REQUIRE(zero >= 0 && pipe(out) == 0);
	EXPECT(store_faults(m.base));
	EXPECT_EQ(m.base[0], 0);
	EXPECT(store_faults(m.base));
	EXPECT_ERRNO(read(zero, m.base, 8), EFAULT);
	EXPECT_ERRNO(read(zero, m.base + PAGE, 8), EFAULT);
	/* The kernel may copy zeroes from it. */
	EXPECT_EQ(write(out[1], m.base, 8), 8);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 1, NULL), 0);
	EXPECT(!store_faults(m.base));
	EXPECT_EQ(m.base[0], 1);
	for (unsigned long p = 1; p < 64; p++)
		EXPECT_EQ(m.base[p * PAGE], 0);
	map_destroy(&m);
	close(zero);
}

/* What looks at the page itself and not through an entry sees zeroes, too. */
static void pinned(void)
{
	const unsigned long scratch = DISK_PAGES + 9;
	char *copy = aligned_alloc(PAGE, PAGE);
	int disk = open_disk(), out[2];
	struct iovec iov, local = { .iov_base = copy, .iov_len = PAGE };
	struct map m;

	blank_create(&m, -1, 1, 32, 64);
	REQUIRE(copy && pipe(out) == 0);
	memset(copy, 7, PAGE);
	EXPECT_EQ(pwrite(disk, m.base, PAGE, scratch * PAGE), PAGE);
	EXPECT_EQ(pread(disk, copy, PAGE, scratch * PAGE), PAGE);
	EXPECT_EQ(copy[0] | copy[PAGE - 1], 0);
	iov.iov_base = m.base + PAGE;
	iov.iov_len = PAGE;
	EXPECT_EQ(m.base[PAGE], 0);
	EXPECT_EQ(vmsplice(out[1], &iov, 1, 0), PAGE);
	EXPECT_EQ(process_vm_readv(getpid(), &local, 1, &iov, 1, 0), PAGE);
	EXPECT_EQ(copy[0], 0);
	/* But nothing writes to it. */
	EXPECT_ERRNO(pread(disk, m.base, PAGE, 0), EFAULT);
	EXPECT_ERRNO(pread(disk, m.base + 2 * PAGE, PAGE, 0), EFAULT);
	memset(copy, 7, PAGE);
	EXPECT_ERRNO(process_vm_writev(getpid(), &local, 1, &iov, 1, 0), EFAULT);
	EXPECT_EQ(m.base[PAGE], 0);
	/* What the pipe has is not what comes there. */
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 4, NULL), 0);
	memset(m.base, 9, 4 * PAGE);
	EXPECT_EQ(read(out[0], copy, PAGE), PAGE);
	EXPECT_EQ(copy[0], 0);
	map_destroy(&m);
}

static void reads(void)
{
	struct map m;
	unsigned long done;

	blank_create(&m, open_disk(), 1, 64, DISK_PAGES);
	for (unsigned long p = 0; p < 64; p++)
		EXPECT_EQ(m.base[p * PAGE], 0);
	EXPECT_EQ(pread(m.fd, m.base, PAGE, EXMAP_OP_READ << 8), PAGE);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_READ, 1, 31, &done), 0);
	EXPECT_EQ(done, 31);
	for (unsigned long p = 0; p < 32; p++)
		EXPECT(stamped(m.base + p * PAGE, p ^ DISK_SEED));
	EXPECT_EQ(counters(&m).flushes, 0);
	EXPECT(counters(&m).flushes_blank > 0);
	map_destroy(&m);
}

static void blank_child(void *data)
{
	struct map *m = data;

	EXPECT(load_faults(m->base));
	EXPECT(load_faults(m->base + PAGE));
}

static void fork_and_exit(void)
{
	struct map m;

	blank_create(&m, -1, 1, 8, 16);
	EXPECT_EQ(m.base[0], 0);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 1, 1, NULL), 0);
	EXPECT_EQ(in_child(blank_child, &m), 0);
	allow_fork(&m);
	EXPECT_EQ(in_child(blank_child, &m), 0);
	EXPECT_EQ(m.base[0], 0);
	/* Leaves it all to exit, with the descriptor closed first. */
	close(m.fd);
	EXPECT_EQ(m.base[2 * PAGE], 0);
}

/* ---- two processors ---- */

static struct map shared;
static volatile bool done;
static volatile uint64_t round_ready, looks, stale;

/* Knows by round_ready from when on the page must not be blank. */
static void *reader(void *unused)
{
	(void)unused;
	pin_to_cpu(1);
	while (!done) {
		uint64_t ready = __atomic_load_n(&round_ready, __ATOMIC_ACQUIRE);
		uint64_t seen = *(volatile uint64_t *)shared.base;

		if (ready && ready == __atomic_load_n(&round_ready,
						      __ATOMIC_ACQUIRE) &&
		    seen != ready)
			stale++;
		looks++;
	}
	return NULL;
}

static void seen_by_all(void)
{
	pthread_t thread;

	REQUIRE(sysconf(_SC_NPROCESSORS_ONLN) > 1);
	pin_to_cpu(0);
	blank_create(&shared, -1, 1, 64, 1024);
	pthread_create(&thread, NULL, reader, NULL);
	for (uint64_t round = 1; round <= 300; round++) {
		wait_for_looks(&looks, 50);
		/* By turns alone, which takes the lock, and in a range. */
		EXPECT_EQ(one(&shared, 0, EXMAP_OP_ALLOC, 0,
			      round % 2 ? 1 : 8, NULL), 0);
		*(volatile uint64_t *)shared.base = round;
		__atomic_store_n(&round_ready, round, __ATOMIC_RELEASE);
		wait_for_looks(&looks, 50);
		__atomic_store_n(&round_ready, 0, __ATOMIC_RELEASE);
		EXPECT_EQ(one(&shared, 0, EXMAP_OP_FREE, 0, 8, NULL), 0);
	}
	done = true;
	pthread_join(thread, NULL);
	printf("# %llu looks, %llu blank after ALLOC\n",
	       (unsigned long long)looks, (unsigned long long)stale);
	EXPECT_EQ(stale, 0);
	EXPECT(counters(&shared).flushes_blank > 0);
}

/* Loads everywhere, while pages come, go, and are taken by the kernel. */
static void *load_everywhere(void *unused)
{
	uint64_t state = 7;

	(void)unused;
	while (!done) {
		char *page = shared.base + random_u64(&state) % 256 * PAGE;
		uint64_t value = *(volatile uint64_t *)page;

		if (value && value >> 32 != (uint64_t)(page - shared.base) / PAGE)
			stale++;
		looks++;
	}
	return NULL;
}

static void *advise(void *unused)
{
	uint64_t state = 9;

	(void)unused;
	while (!done) {
		char *page = shared.base + (128 + random_u64(&state) % 128) * PAGE;

		madvise(page, PAGE * (1 + random_u64(&state) % 8), MADV_DONTNEED);
		sched_yield();
	}
	return NULL;
}

/*
 * A page that comes to an address still holds what it held elsewhere, so this
 * clears pages before it frees them, and the kernel takes only cleared ones.
 */
static void come_and_go(void)
{
	const char *seconds = getenv("EXMAP_SECONDS");
	time_t end = time(NULL) + (seconds ? atoi(seconds) : 5);
	pthread_t threads[3];
	uint64_t state = 3;

	blank_create(&shared, -1, 4, 300, 1024);
	pthread_create(&threads[0], NULL, load_everywhere, NULL);
	pthread_create(&threads[1], NULL, load_everywhere, NULL);
	pthread_create(&threads[2], NULL, advise, NULL);
	while (time(NULL) < end) {
		unsigned long page = random_u64(&state) % 256;
		unsigned long count = 1 + random_u64(&state) % 4;

		if (page + count > 256)
			continue;
		EXPECT_EQ(one(&shared, 0, EXMAP_OP_ALLOC, page, count, NULL), 0);
		if (page + count <= 128) {
			for (unsigned long i = page; i < page + count; i++) {
				volatile uint64_t *word =
					(uint64_t *)(shared.base + i * PAGE);

				*word = i << 32 | 1;
				if (*word != (i << 32 | 1))
					stale++;
				*word = 0;
			}
		}
		EXPECT_EQ(one(&shared, 1, EXMAP_OP_FREE, page, count, NULL), 0);
	}
	done = true;
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	printf("# %llu looks, %llu flushes by ALLOC\n",
	       (unsigned long long)looks,
	       (unsigned long long)counters(&shared).flushes_blank);
	EXPECT_EQ(stale, 0);
	EXPECT_EQ(one(&shared, 0, EXMAP_OP_FREE, 0, 256, NULL), 0);
	EXPECT_EQ(drain(&shared, 2, 300), 300);
	map_destroy(&shared);
}

const struct test blank_tests[] = {
	{ "loads of what is not mapped raise a signal, or see zeroes if asked for before mmap",
	  choice, NULL },
	{ "a blank page takes nothing from the pool and counts as not mapped",
	  zeroes, NULL },
	{ "a blank page cannot be written, by the program or by the kernel",
	  no_stores, NULL },
	{ "direct writes and pipes take zeroes from a blank page, and direct reads fail",
	  pinned, DISK },
	{ "READ fills what was blank", reads, DISK },
	{ "a child has no blank pages; exit takes them away", fork_and_exit,
	  NULL },
	{ "a page that ALLOC put in a blank one's place is seen by all processors",
	  seen_by_all, NULL },
	{ "blank pages come and go under loads, FREE and MADV_DONTNEED, and no page is lost",
	  come_and_go, NULL },
	{ NULL, NULL, NULL },
};
