// SPDX-License-Identifier: GPL-2.0-only
/* alloc.c - ALLOC, FREE and the pool */
#include "test.h"

static void lifecycle(void)
{
	struct map m;
	int pages;

	map_create(&m, -1, 1, 16, 64);
	EXPECT(load_faults(m.base + 5 * PAGE));
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 5, 3, &pages), 0);
	EXPECT_EQ(pages, 3);
	for (unsigned long i = 5 * PAGE; i < 8 * PAGE; i++) {
		if (m.base[i])
			note_failure(__FILE__, __LINE__, "not zeroed");
	}
	EXPECT(load_faults(m.base + 4 * PAGE));
	EXPECT(load_faults(m.base + 8 * PAGE));
	memset(m.base + 5 * PAGE, 7, 3 * PAGE);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_FREE, 6, 1, &pages), 0);
	EXPECT_EQ(pages, 1);
	EXPECT(!load_faults(m.base + 5 * PAGE));
	EXPECT(load_faults(m.base + 6 * PAGE));
	EXPECT_EQ(m.base[7 * PAGE], 7);
	map_destroy(&m);
}

static void over_mapped(void)
{
	struct map m;
	int pages;

	map_create(&m, -1, 1, 16, 64);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 4, 4, &pages), 0);
	memset(m.base + 4 * PAGE, 9, 4 * PAGE);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 12, &pages), 0);
	EXPECT_EQ(pages, 8);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 12, &pages), 0);
	EXPECT_EQ(pages, 0);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 4, 1, &pages), 0);
	EXPECT_EQ(pages, 0);
	for (int i = 4; i < 8; i++)
		EXPECT_EQ(m.base[i * PAGE + 99], 9);
	EXPECT_EQ(counters(&m).pages_free, 4);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_FREE, 0, 12, &pages), 0);
	EXPECT_EQ(pages, 12);
	EXPECT_EQ(drain(&m, 0, 0), 16);
}

static void free_unmapped(void)
{
	struct map m;
	int pages;

	/* Spread over several page tables, most of which do not exist. */
	map_create(&m, -1, 1, 16, 1 << 20);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_FREE, 0, 4095, &pages), 0);
	EXPECT_EQ(pages, 0);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 1000000, 1, &pages), 0);
	unsigned long done;

	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 1 << 20, &done), 0);
	EXPECT_EQ(done, 1);
	EXPECT_EQ(drain(&m, 0, 0), 16);
}

static void from_one_interface(void)
{
	const unsigned long sizes[] = { 1, 7, 64, 1000, 5003 };

	for (int s = 0; s < 5; s++) {
		for (int ifaces = 1; ifaces <= 64; ifaces *= 8) {
			struct map m;

			map_create(&m, -1, ifaces, sizes[s], 8192);
			EXPECT_EQ(drain(&m, 0, 0), sizes[s]);
			EXPECT_EQ(drain(&m, ifaces - 1, 100), sizes[s]);
			EXPECT_EQ(drain(&m, ifaces / 2, 0), sizes[s]);
			map_destroy(&m);
		}
	}
}

static void exhaustion(void)
{
	struct map m;
	int pages;
	unsigned long done;

	map_create(&m, -1, 4, 100, 4096);
	EXPECT_EQ(one(&m, 2, EXMAP_OP_ALLOC, 50, 300, &pages), -ENOMEM);
	EXPECT_EQ(pages, 100);
	EXPECT_EQ(count_mapped(&m, 0, 400), 100);
	EXPECT_EQ(count_mapped(&m, 50, 100), 100);
	/* Nothing is locked, nothing lost; others are refused likewise. */
	EXPECT_EQ(one(&m, 1, EXMAP_OP_ALLOC, 0, 1, &pages), -ENOMEM);
	EXPECT_EQ(pages, 0);
	/* What is mapped needs no page; up to where it ends. */
	EXPECT_EQ(one(&m, 1, EXMAP_OP_ALLOC, 60, 90, &pages), 0);
	EXPECT_EQ(pages, 0);
	EXPECT_EQ(one(&m, 1, EXMAP_OP_ALLOC, 60, 91, &pages), -ENOMEM);
	EXPECT_EQ(pread(m.fd, m.base + 60 * PAGE, 100 * PAGE,
			EXMAP_OP_ALLOC << 8), 90 * PAGE);
	EXPECT_EQ(one(&m, 3, EXMAP_OP_FREE, 60, 30, &pages), 0);
	EXPECT_EQ(pages, 30);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 1000, 31, &done), -ENOMEM);
	EXPECT_EQ(done, 30);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 4096, &done), 0);
	EXPECT_EQ(done, 100);
	for (int i = 0; i < 4; i++)
		EXPECT_EQ(drain(&m, i, 0), 100);
	EXPECT_EQ(counters(&m).pages_free, 100);

	/* In the middle of a vector: each range has its own result. */
	struct exmap_iov *iov = m.iface[0]->iov;
	struct exmap_action_params params = {
		.iov_len = 4, .opcode = EXMAP_OP_ALLOC,
	};
	for (int i = 0; i < 4; i++) {
		iov[i].page = i * 100;
		iov[i].len = 40;
	}
	EXPECT_EQ(ioctl(m.fd, EXMAP_IOCTL_ACTION, &params), 2);
	EXPECT_EQ(iov[1].res, 0);
	EXPECT_EQ(iov[1].pages, 40);
	EXPECT_EQ(iov[2].res, -ENOMEM);
	EXPECT_EQ(iov[2].pages, 20);
	EXPECT_EQ(iov[3].res, -ENOMEM);
	EXPECT_EQ(iov[3].pages, 0);
	EXPECT_EQ(count_mapped(&m, 0, 400), 100);
}

static void outside(void)
{
	struct map m;
	struct exmap_iov *iov;
	struct exmap_action_params params = {
		.iov_len = 5, .opcode = EXMAP_OP_ALLOC,
	};

	map_create(&m, -1, 1, 64, 64);
	iov = m.iface[0]->iov;
	for (int op = EXMAP_OP_ALLOC; op <= EXMAP_OP_FREE; op++) {
		params.opcode = op;
		iov[0].page = 0; iov[0].len = 2;
		iov[1].page = 63; iov[1].len = 2;
		iov[2].page = 64; iov[2].len = 1;
		iov[3].page = (1ULL << 52) - 1; iov[3].len = 4095;
		iov[4].page = 10; iov[4].len = 3;
		EXPECT_EQ(ioctl(m.fd, EXMAP_IOCTL_ACTION, &params), 3);
		EXPECT_EQ(iov[0].res, 0);
		EXPECT_EQ(iov[0].pages, 2);
		for (int i = 1; i < 4; i++) {
			EXPECT_EQ(iov[i].res, -EINVAL);
			EXPECT_EQ(iov[i].pages, 0);
		}
		EXPECT_EQ(iov[4].pages, 3);
		EXPECT_EQ(batch_one(&m, 0, op, ~0UL, 2, NULL), -EINVAL);
		EXPECT_EQ(batch_one(&m, 0, op, 1, ~0UL, NULL), -EINVAL);
		EXPECT_EQ(batch_one(&m, 0, op, 64, 1, NULL), -EINVAL);
	}
	EXPECT_EQ(counters(&m).pages_free, 64);
}

static void by_pread(void)
{
	struct iovec iov[3];
	struct map m;

	map_create(&m, -1, 2, 64, 128);
	EXPECT_EQ(pread(m.fd, m.base + PAGE, PAGE, 1 | EXMAP_OP_ALLOC << 8), PAGE);
	m.base[PAGE] = 3;
	/* As in the published module: only what was vacant counts. */
	EXPECT_EQ(pread(m.fd, m.base + PAGE, PAGE, EXMAP_OP_ALLOC << 8), 0);
	EXPECT_EQ(pread(m.fd, m.base, 4 * PAGE, EXMAP_OP_ALLOC << 8), 0);
	EXPECT_EQ(m.base[PAGE], 3);
	EXPECT_EQ(count_mapped(&m, 0, 128), 4);
	for (int i = 0; i < 3; i++) {
		iov[i].iov_base = m.base + (100 - 30 * i) * PAGE;
		iov[i].iov_len = i == 1 ? 0 : 5 * PAGE;
	}
	EXPECT_EQ(preadv(m.fd, iov, 3, EXMAP_OP_ALLOC << 8), 10 * PAGE);
	EXPECT_EQ(count_mapped(&m, 0, 128), 14);
	EXPECT_ERRNO(pread(m.fd, m.base, 4 * PAGE, EXMAP_OP_FREE << 8), EINVAL);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 4, NULL), 0);
	EXPECT_EQ(count_mapped(&m, 0, 128), 10);
	/* Exhausted part of the way, 5 pages of which were mapped before. */
	EXPECT_EQ(pread(m.fd, m.base, 70 * PAGE, EXMAP_OP_ALLOC << 8), 59 * PAGE);
	EXPECT_ERRNO(pread(m.fd, m.base + 59 * PAGE, PAGE, EXMAP_OP_ALLOC << 8),
		     ENOMEM);
}

static void by_batch(void)
{
	struct exmap_range r[300] = { 0 };
	struct exmap_batch b = {
		.ranges = (uintptr_t)r, .nr_ranges = 300,
		.opcode = EXMAP_OP_ALLOC,
	};
	struct map m;

	map_create(&m, -1, 1, 1000, 10000);
	for (int i = 0; i < 300; i++) {
		r[i].first = i * 30;
		r[i].count = 1 + i % 3;
	}
	r[7].count = 0;
	r[8].pad = 1;
	r[9].first = 9999; r[9].count = 2;
	EXPECT_EQ(ioctl(m.fd, EXMAP_IOCTL_BATCH, &b), 0);
	EXPECT_EQ(b.ranges_failed, 3);
	EXPECT_EQ(b.pages_done, 600 - 2 - 3 - 1);
	for (int i = 0; i < 300; i++) {
		bool bad = i >= 7 && i <= 9;

		EXPECT_EQ(r[i].error, bad ? -EINVAL : 0);
		EXPECT_EQ(r[i].done, bad ? 0 : 1 + i % 3);
	}
	EXPECT_EQ(count_mapped(&m, 0, 10000), 594);

	b.flags = 1;
	EXPECT_ERRNO(ioctl(m.fd, EXMAP_IOCTL_BATCH, &b), EINVAL);
	b.flags = 0; b.pad = 1;
	EXPECT_ERRNO(ioctl(m.fd, EXMAP_IOCTL_BATCH, &b), EINVAL);
	b.pad = 0; b.opcode = EXMAP_OP_WRITE;
	EXPECT_ERRNO(ioctl(m.fd, EXMAP_IOCTL_BATCH, &b), EINVAL);
	b.opcode = EXMAP_OP_FREE; b.interface = 1;
	EXPECT_ERRNO(ioctl(m.fd, EXMAP_IOCTL_BATCH, &b), EINVAL);
	b.interface = 0; b.nr_ranges = 1 << 20;
	EXPECT_ERRNO(ioctl(m.fd, EXMAP_IOCTL_BATCH, &b), EINVAL);
	b.nr_ranges = 300; b.ranges = 16;
	EXPECT_ERRNO(ioctl(m.fd, EXMAP_IOCTL_BATCH, &b), EFAULT);
	EXPECT_EQ(count_mapped(&m, 0, 10000), 594);
	r[0].first = 0; r[0].count = 10000;
	b.ranges = (uintptr_t)r; b.nr_ranges = 1;
	EXPECT_EQ(ioctl(m.fd, EXMAP_IOCTL_BATCH, &b), 0);
	EXPECT_EQ(b.pages_done, 594);
	EXPECT_EQ(drain(&m, 0, 0), 1000);
}

/* Three interfaces: the pages of 1 and 2 reach 0 by one tier or another. */
static void stealing(void)
{
	struct exmap_counters c;
	struct map m;

	map_create(&m, -1, 64, 6400, 8192);
	EXPECT_EQ(drain(&m, 0, 0), 6400);
	c = counters(&m);
	EXPECT(c.stolen_last > 0);
	EXPECT(c.stolen_random > 0);
	EXPECT(c.stolen_last + c.stolen_random + c.stolen_any >= 6300);
	/* The pages of a list that only a search of all finds. */
	EXPECT_EQ(many(&m, 40, EXMAP_OP_ALLOC, 0, 1, 512), 512);
	unsigned long done;

	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 512, 5888, &done), 0);
	EXPECT_EQ(many(&m, 40, EXMAP_OP_FREE, 0, 1, 5), 5);
	EXPECT_EQ(many(&m, 17, EXMAP_OP_ALLOC, 7000, 1, 5), 5);
	EXPECT(counters(&m).pages_free == 0);
}

struct racer {
	struct map *m;
	int iface;
	long sum;
};

static void *race(void *data)
{
	struct racer *r = data;

	for (unsigned long p = 0; p < 2048; p += 8) {
		int pages = many(r->m, r->iface, EXMAP_OP_ALLOC, p, 1, 8);

		r->sum += pages;
	}
	for (unsigned long p = 2048; p < 4096; p += 256) {
		int pages = 0;

		EXPECT_EQ(one(r->m, r->iface, EXMAP_OP_ALLOC, p, 256, &pages), 0);
		r->sum += pages;
	}
	return NULL;
}

static void same_pages(void)
{
	struct map m;

	map_create(&m, -1, 4, 16384, 4096);
	for (int round = 0; round < 10; round++) {
		struct racer racers[4];
		pthread_t threads[4];
		long sum = 0;

		for (int i = 0; i < 4; i++) {
			racers[i] = (struct racer) { &m, i, 0 };
			pthread_create(&threads[i], NULL, race, &racers[i]);
		}
		for (int i = 0; i < 4; i++) {
			pthread_join(threads[i], NULL);
			sum += racers[i].sum;
		}
		EXPECT_EQ(sum, 4096);
		EXPECT_EQ(counters(&m).pages_free, 16384 - 4096);
		EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 4096, NULL), 0);
	}
	EXPECT_EQ(counters(&m).pages_free, 16384);
}

const struct test basic_tests[] = {
	{ "a page can be touched from ALLOC to FREE, and is zeroed at first",
	  lifecycle, NULL },
	{ NULL, NULL, NULL },
};

const struct test alloc_tests[] = {
	{ "ALLOC over mapped pages keeps them and loses none", over_mapped,
	  NULL },
	{ "FREE of what is not mapped does nothing", free_unmapped, NULL },
	{ "every page of the pool can be had from any interface: no more, no less",
	  from_one_interface, NULL },
	{ "exhaustion in the middle of a range says so, keeps what was done, loses nothing",
	  exhaustion, NULL },
	{ "a range that leaves the area is refused, its neighbours are not",
	  outside, NULL },
	{ "pread and preadv allocate, and say how much was vacant", by_pread, NULL },
	{ "BATCH reports each range and the sum", by_batch, NULL },
	{ "an interface without pages steals in three tiers", stealing, NULL },
	{ "threads that allocate the same pages map each once", same_pages,
	  NULL },
	{ NULL, NULL, NULL },
};
