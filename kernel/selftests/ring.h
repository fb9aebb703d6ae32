/* SPDX-License-Identifier: GPL-2.0-only */
/* ring.h - io_uring without a library */
#ifndef EXMAP_RING_H
#define EXMAP_RING_H

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

static inline void ring_create(struct ring *r, unsigned int entries)
{
	struct io_uring_params p = { 0 };
	char *sq, *cq;

	r->fd = syscall(SYS_io_uring_setup, entries, &p);
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

/* The next entry to be submitted, cleared; it is among those from now on. */
static inline struct io_uring_sqe *ring_entry(struct ring *r)
{
	unsigned int tail = *r->sq_tail, index = tail & *r->sq_mask;

	memset(&r->sqes[index], 0, sizeof(r->sqes[index]));
	r->sq_array[index] = index;
	__atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
	return &r->sqes[index];
}

/* Submits @nr entries and stores the results by tag. */
static inline void ring_finish(struct ring *r, int nr, int *results)
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

static inline int ring_register(struct ring *r, unsigned int what, void *arg,
				unsigned int nr)
{
	return syscall(SYS_io_uring_register, r->fd, what, arg, nr);
}

#endif
