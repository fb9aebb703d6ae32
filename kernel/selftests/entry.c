// SPDX-License-Identifier: GPL-2.0-only
/*
 * entry.c - the bits of page-table entries, as peek.c shows them
 *
 * A processor that stores through an entry which is not dirty must write the
 * bit into it first. It does so without a fault, so no count of faults tells;
 * but the entry tells, before the store and after it.
 */
#include "test.h"

/* Bits of an entry of x86. */
#define PRESENT 0x001UL
#define WRITABLE 0x002UL
#define USER 0x004UL
#define ACCESSED 0x020UL
#define DIRTY 0x040UL
#define SPECIAL 0x200UL
#define READY (PRESENT | WRITABLE | USER | ACCESSED | DIRTY)

static uint64_t entry_of(struct map *m, unsigned long page)
{
	static int fd = -1;
	uint64_t entry;

	if (fd < 0)
		fd = open(PEEK, O_RDONLY);
	REQUIRE(fd >= 0);
	REQUIRE(pread(fd, &entry, sizeof(entry),
		      (uintptr_t)m->base + page * PAGE) == sizeof(entry));
	return entry;
}

/* Neither a load nor a store has anything to add to what the module wrote. */
static void expect_ready(struct map *m, unsigned long first, unsigned long nr)
{
	for (unsigned long p = first; p < first + nr; p++) {
		volatile char *byte = m->base + p * PAGE;
		uint64_t before = entry_of(m, p);

		EXPECT_EQ(before & (READY | SPECIAL), READY);
		(void)*byte;
		EXPECT_EQ(entry_of(m, p), before);
		*byte = 1;
		EXPECT_EQ(entry_of(m, p), before);
	}
}

static void ready(void)
{
	struct map m;

	for (int faults = EXMAP_FAULTS_SIGNAL; faults <= EXMAP_FAULTS_BLANK;
	     faults++) {
		map_create_with(&m, faults, -1, 1, 16, 1024);
		EXPECT_EQ(entry_of(&m, 0), 0);
		EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 8, NULL), 0);
		EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 508, 8, NULL), 0);
		expect_ready(&m, 0, 8);
		expect_ready(&m, 508, 8);
		/* A page that comes again is no different. */
		EXPECT_EQ(one(&m, 0, EXMAP_OP_FREE, 0, 8, NULL), 0);
		EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 700, 8, NULL), 0);
		expect_ready(&m, 700, 8);
		map_destroy(&m);
	}
}

static void ready_after_read(void)
{
	struct map m;

	map_create(&m, open_disk(), 1, 16, DISK_PAGES);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_READ, 40, 8, NULL), 0);
	expect_ready(&m, 40, 8);
	map_destroy(&m);
}

static void nothing_left(void)
{
	struct map m;

	map_create(&m, -1, 1, 16, 64);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 16, NULL), 0);
	EXPECT_EQ(one(&m, 0, EXMAP_OP_FREE, 0, 4, NULL), 0);
	EXPECT_EQ(madvise(m.base + 8 * PAGE, 4 * PAGE, MADV_DONTNEED), 0);
	for (unsigned long p = 0; p < 16; p++) {
		bool gone = p < 4 || (p >= 8 && p < 12);

		EXPECT_EQ(entry_of(&m, p) != 0, !gone);
	}
	map_destroy(&m);
}

static void blank(void)
{
	struct map m;
	uint64_t entry;

	map_create_with(&m, EXMAP_FAULTS_BLANK, -1, 1, 16, 64);
	for (unsigned long p = 0; p < 8; p++) {
		EXPECT(!load_faults(m.base + p * PAGE));
		entry = entry_of(&m, p);
		EXPECT_EQ(entry & (PRESENT | USER | SPECIAL),
			  PRESENT | USER | SPECIAL);
		EXPECT_EQ(entry & (WRITABLE | DIRTY), 0);
		EXPECT(store_faults(m.base + p * PAGE));
		EXPECT_EQ(entry_of(&m, p), entry);
	}
	EXPECT_EQ(one(&m, 0, EXMAP_OP_ALLOC, 0, 8, NULL), 0);
	expect_ready(&m, 0, 8);
	map_destroy(&m);
}

const struct test entry_tests[] = {
	{ "a page that ALLOC brought is writable, accessed and dirty: a first store adds nothing",
	  ready, PEEK },
	{ "so is one that READ filled", ready_after_read, PEEK },
	{ "FREE and MADV_DONTNEED leave nothing in an entry", nothing_left,
	  PEEK },
	{ "the entry of a blank page is neither writable nor dirty, and stays so",
	  blank, PEEK },
	{ NULL, NULL, NULL },
};
