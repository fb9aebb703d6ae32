// SPDX-License-Identifier: GPL-2.0-only
/* uring.c - the same operations as io_uring commands, without a library */
#include <linux/io_uring.h>
#include <sys/syscall.h>

#include "test.h"

struct ring {
	int fd;
	unsigned int *sq_tail, *sq_mask, *cq_head, *cq_tail, *cq_mask;
	unsigned int *sq_array;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
};

static void ring_create(struct ring *r)
{
	struct io_uring_params p = { 0 };
	char *sq, *cq;

	r->fd = syscall(SYS_io_uring_setup, 64, &p);
	REQUIRE(r->fd >= 0);
	sq = mmap(NULL, p.sq_off.array + p.sq_entries * 4,
		  PROT_READ | PROT_WRITE, MAP_SHARED, r->fd,
		  IORING_OFF_SQ_RING);
	cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof(*r->cqes),
		  PROT_READ | PROT_WRITE, MAP_SHARED, r->fd,
		  IORING_OFF_CQ_RING);
	r->sqes = mmap(NULL, p.sq_entries * sizeof(*r->sqes),
		       PROT_READ | PROT_WRITE, MAP_SHARED, r->fd,
		       IORING_OFF_SQES);
	REQUIRE(sq != MAP_FAILED && cq != MAP_FAILED &&
		(void *)r->sqes != MAP_FAILED);
	r->sq_tail = (void *)(sq + p.sq_off.tail);
	r->sq_mask = (void *)(sq + p.sq_off.ring_mask);
	r->sq_array = (void *)(sq + p.sq_off.array);
	r->cq_head = (void *)(cq + p.cq_off.head);
	r->cq_tail = (void *)(cq + p.cq_off.tail);
	r->cq_mask = (void *)(cq + p.cq_off.ring_mask);
	r->cqes = (void *)(cq + p.cq_off.cqes);
}

static void push(struct ring *r, int fd, unsigned int op, uint64_t address,
		 uint64_t length, uint64_t tag)
{
	unsigned int tail = *r->sq_tail, index = tail & *r->sq_mask;
	struct io_uring_sqe *sqe = &r->sqes[index];
	struct exmap_uring_range range = { address, length };

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = 46;	/* IORING_OP_URING_CMD; older headers lack it */
	sqe->fd = fd;
	sqe->off = op;		/* cmd_op */
	sqe->user_data = tag;
	memcpy((char *)sqe + 48, &range, sizeof(range));
	r->sq_array[index] = index;
	__atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
}

/* Submits @nr entries and stores the results by tag. */
static void finish(struct ring *r, int nr, int *results)
{
	REQUIRE(syscall(SYS_io_uring_enter, r->fd, nr, nr,
			IORING_ENTER_GETEVENTS, NULL, 0) == nr);
	for (int i = 0; i < nr; i++) {
		unsigned int head = *r->cq_head;
		struct io_uring_cqe *cqe = &r->cqes[head & *r->cq_mask];

		REQUIRE(head != __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE));
		results[cqe->user_data] = cqe->res;
		__atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
	}
}

static int single(struct ring *r, int fd, unsigned int op, void *address,
		  uint64_t length)
{
	int result = 0;

	push(r, fd, op, (uintptr_t)address, length, 0);
	finish(r, 1, &result);
	return result;
}

static void alloc_and_free(void)
{
	struct ring r;
	struct map m;

	ring_create(&r);
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

	ring_create(&r);
	map_create(&m, open_disk(), 4, 512, DISK_PAGES);
	for (int i = 0; i < 32; i++) {
		results[i] = 1;
		push(&r, m.fd, i % 4, (uintptr_t)m.base + i * 100 * PAGE,
		     4 * PAGE, i);
	}
	finish(&r, 32, results);
	for (int i = 0; i < 32; i++) {
		EXPECT_EQ(results[i], 4 * PAGE);
		for (int p = i * 100; p < i * 100 + 4; p++)
			EXPECT(mapped(m.base + p * PAGE) &&
			       stamped(m.base + p * PAGE, p ^ DISK_SEED));
	}
	EXPECT_EQ(count_mapped(&m, 0, DISK_PAGES), 128);
}

static int reg(struct ring *r, unsigned int what, void *arg, unsigned int nr)
{
	return syscall(SYS_io_uring_register, r->fd, what, arg, nr);
}

static void registered(void)
{
	int disk = open_disk(), result = 0;
	struct iovec iov = { .iov_len = 8 * PAGE };
	struct io_uring_sqe *sqe;
	struct ring r;
	struct map m;

	ring_create(&r);
	map_create(&m, -1, 1, 64, 128);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 0, 16, NULL), 0);
	iov.iov_base = m.base;
	if (reg(&r, IORING_REGISTER_BUFFERS, &iov, 1)) {
		/* Before 6.5 io_uring itself took no file's memory. */
		printf("# errno %d\n", errno);
		EXPECT_EQ(errno, EOPNOTSUPP);
		return;
	}
	push(&r, disk, 0, 0, 0, 0);
	sqe = &r.sqes[(*r.sq_tail - 1) & *r.sq_mask];
	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_READ_FIXED;
	sqe->fd = disk;
	sqe->off = 9 * PAGE;
	sqe->addr = (uintptr_t)m.base + 3 * PAGE;
	sqe->len = PAGE;
	finish(&r, 1, &result);
	EXPECT_EQ(result, PAGE);
	EXPECT(stamped(m.base + 3 * PAGE, 9 ^ DISK_SEED));

	/* They are held, and come back when they are not any more. */
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_FREE, 0, 16, NULL), 0);
	EXPECT_EQ(counters(&m).pages_parked, 8);
	EXPECT_EQ(drain(&m, 0, 0), 56);
	EXPECT_EQ(reg(&r, IORING_UNREGISTER_BUFFERS, NULL, 0), 0);
	usleep(100000);
	EXPECT_EQ(drain(&m, 0, 0), 64);
	map_destroy(&m);

	/* With blank pages the kernel lets nobody pin for long. */
	map_create_with(&m, EXMAP_FAULTS_BLANK, -1, 1, 64, 128);
	EXPECT_EQ(batch_one(&m, 0, EXMAP_OP_ALLOC, 0, 16, NULL), 0);
	iov.iov_base = m.base;
	EXPECT_ERRNO(reg(&r, IORING_REGISTER_BUFFERS, &iov, 1), EFAULT);
	map_destroy(&m);
}

const struct test uring_tests[] = {
	{ "io_uring allocates, releases and carries batches", alloc_and_free,
	  NULL },
	{ "pages can be registered as buffers, read into, and are held until they are not",
	  registered, DISK },
	{ "io_uring reads many ranges at once", many_reads, DISK },
	{ NULL, NULL, NULL },
};
