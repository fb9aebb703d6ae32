// SPDX-License-Identifier: GPL-2.0-only
/* uring.c - the same operations as io_uring commands, without a library */
#include "ring.h"
#include "test.h"

static struct io_uring_sqe *push(struct ring *r, int fd, unsigned int op,
				 uint64_t address, uint64_t length, uint64_t tag)
{
	struct io_uring_sqe *sqe = ring_entry(r);
	struct exmap_uring_range range = { address, length };

	sqe->opcode = 46;	/* IORING_OP_URING_CMD; older headers lack it */
	sqe->fd = fd;
	sqe->off = op;		/* cmd_op */
	sqe->user_data = tag;
	memcpy((char *)sqe + 48, &range, sizeof(range));
	return sqe;
}

static int single(struct ring *r, int fd, unsigned int op, void *address,
		  uint64_t length)
{
	int result = 0;

	push(r, fd, op, (uintptr_t)address, length, 0);
	ring_finish(r, 1, &result);
	return result;
}

static void alloc_and_free(void)
{
	struct ring r;
	struct map m;

	ring_create(&r, 64);
	map_create(&m, -1, 2, 64, 128);
	EXPECT_EQ(single(&r, m.fd, 1 | EXMAP_OP_ALLOC << 8, m.base, 40 * PAGE),
		  40 * PAGE);
	EXPECT_EQ(count_mapped(&m, 0, 128), 40);
	EXPECT_EQ(single(&r, m.fd, 0 | EXMAP_OP_FREE << 8, m.base, 10 * PAGE),
		  10 * PAGE);
	EXPECT_EQ(count_mapped(&m, 0, 128), 30);
	EXPECT_EQ(single(&r, m.fd, 2 | EXMAP_OP_ALLOC << 8, m.base, PAGE), -EINVAL);
	EXPECT_EQ(single(&r, m.fd, EXMAP_OP_WRITE << 8, m.base, PAGE), -EINVAL);
	EXPECT_EQ(single(&r, m.fd, EXMAP_OP_ALLOC << 8, m.base + 1, PAGE), -EINVAL);
	EXPECT_EQ(single(&r, m.fd, EXMAP_OP_ALLOC << 8, m.base + 128 * PAGE, PAGE),
		  -EINVAL);
	EXPECT_EQ(single(&r, m.fd, EXMAP_OP_READ << 8, m.base, PAGE), -EINVAL);

	struct exmap_range ranges[2] = {
		{ .first = 0, .count = 5 }, { .first = 200, .count = 1 },
	};
	struct exmap_batch batch = {
		.ranges = (uintptr_t)ranges, .nr_ranges = 2,
		.opcode = EXMAP_OP_ALLOC,
	};
	EXPECT_EQ(single(&r, m.fd, EXMAP_IOCTL_BATCH, &batch, 0), 0);
	EXPECT_EQ(batch.pages_done, 5);
	EXPECT_EQ(ranges[1].error, -EINVAL);
	EXPECT_EQ(count_mapped(&m, 0, 128), 35);
}

static void many_reads(void)
{
	int results[32];
	struct ring r;
	struct map m;

	ring_create(&r, 64);
	map_create(&m, open_disk(), 4, 512, DISK_PAGES);
	for (int i = 0; i < 32; i++) {
		results[i] = 1;
		push(&r, m.fd, i % 4, (uintptr_t)m.base + i * 100 * PAGE,
		     4 * PAGE, i);
	}
	ring_finish(&r, 32, results);
	for (int i = 0; i < 32; i++) {
		EXPECT_EQ(results[i], 4 * PAGE);
		for (int p = i * 100; p < i * 100 + 4; p++)
			EXPECT(mapped(m.base + p * PAGE) &&
			       stamped(m.base + p * PAGE, p ^ DISK_SEED));
	}
	EXPECT_EQ(count_mapped(&m, 0, DISK_PAGES), 128);
}

static void registered(void)
{
	int disk = open_disk(), result = 0;
	struct iovec iov = { .iov_len = 8 * PAGE };
	struct io_uring_sqe *sqe;
	struct ring r;
	struct map m;

	ring_create(&r, 64);
	map_create(&m, -1, 1, 64, 128);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 0, 16, NULL), 0);
	iov.iov_base = m.base;
	if (ring_register(&r, IORING_REGISTER_BUFFERS, &iov, 1)) {
		/* Before 6.5 io_uring itself took no file's memory. */
		printf("# errno %d\n", errno);
		EXPECT_EQ(errno, EOPNOTSUPP);
		return;
	}
	sqe = ring_entry(&r);
	sqe->opcode = IORING_OP_READ_FIXED;
	sqe->fd = disk;
	sqe->off = 9 * PAGE;
	sqe->addr = (uintptr_t)m.base + 3 * PAGE;
	sqe->len = PAGE;
	ring_finish(&r, 1, &result);
	EXPECT_EQ(result, PAGE);
	EXPECT(stamped(m.base + 3 * PAGE, 9 ^ DISK_SEED));

	/* They are held, and come back when they no longer are. */
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 16, NULL), 0);
	EXPECT_EQ(counters(&m).pages_parked, 8);
	EXPECT_EQ(drain(&m, 0, 0), 56);
	EXPECT_EQ(ring_register(&r, IORING_UNREGISTER_BUFFERS, NULL, 0), 0);
	usleep(100000);
	EXPECT_EQ(drain(&m, 0, 0), 64);
	map_destroy(&m);

	/* With blank pages the kernel refuses long-term pins. */
	map_create_with(&m, EXMAP_FAULTS_BLANK, -1, 1, 64, 128);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 0, 16, NULL), 0);
	iov.iov_base = m.base;
	EXPECT_ERRNO(ring_register(&r, IORING_REGISTER_BUFFERS, &iov, 1), EFAULT);
	map_destroy(&m);
}

/* The published module takes such commands; this one must not misread them. */
static void flags_refused(void)
{
	struct iovec iov = { .iov_len = PAGE };
	struct io_uring_sqe *sqe;
	int result = 0;
	struct ring r;
	struct map m;

	ring_create(&r, 64);
	map_create(&m, -1, 1, 64, 128);
	iov.iov_base = aligned_alloc(PAGE, PAGE);
	REQUIRE(iov.iov_base);
	REQUIRE(ring_register(&r, IORING_REGISTER_BUFFERS, &iov, 1) == 0);
	sqe = push(&r, m.fd, EXMAP_OP_ALLOC << 8, (uintptr_t)m.base, 4 * PAGE,
		   0);
	sqe->rw_flags = 1;	/* IORING_URING_CMD_FIXED */
	ring_finish(&r, 1, &result);
	EXPECT_EQ(result, -EINVAL);
	EXPECT_EQ(count_mapped(&m, 0, 128), 0);
	map_destroy(&m);
}

const struct test uring_tests[] = {
	{ "io_uring allocates, releases and carries batches", alloc_and_free,
	  NULL },
	{ "pages can be registered as buffers, read into, and are held until they are not",
	  registered, DISK },
	{ "io_uring reads many ranges at once", many_reads, DISK },
	{ "a command with a registered buffer is refused", flags_refused, NULL },
	{ NULL, NULL, NULL },
};
