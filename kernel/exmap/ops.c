// SPDX-License-Identifier: GPL-2.0-only
/*
 * ops.c - ALLOC, FREE and READ, by whichever of the interfaces they come
 *
 * Every way in makes segments of what it was given, at most EXMAP_CHUNK at a
 * time, and hands them to run(). User memory is never touched under
 * mmap_lock, except for the pages of the interfaces, which the kernel reaches
 * by its own mapping; what is read from them is read once.
 */
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/uio.h>

#include "compat.h"
#include "internal.h"

/**
 * exmap_call_begin - check the caller, and prepare
 *
 * Return: 0; -EBADF before SETUP; -EPERM in another process than the area's;
 * -EINVAL for an interface that does not exist.
 */
int exmap_call_begin(struct exmap_call *call, struct exmap_area *area,
		     u32 iface)
{
	struct mm_struct *mm = READ_ONCE(area->mm);
	struct exmap_pool *pool;

	if (!mm)
		return -EBADF;
	if (mm != current->mm)
		return -EPERM;
	/*
	 * Pairs with create_pool(). From here on this process's being here
	 * keeps the pool.
	 */
	pool = smp_load_acquire(&area->pool);
	if (!pool)
		return -EBADF;
	if (iface >= pool->nr_ifaces)
		return -EINVAL;

	memset(call, 0, sizeof(*call));
	call->area = area;
	call->pool = pool;
	call->iface = &pool->ifaces[iface];
	call->mm = mm;
	INIT_LIST_HEAD(&call->hand);
	INIT_LIST_HEAD(&call->gather);
	return 0;
}

/* Gives back what was not used. */
void exmap_call_end(struct exmap_call *call)
{
	exmap_pool_give(call->iface, &call->hand, call->nr_hand);
	call->nr_hand = 0;
}

/* The address of a segment's first page, or 0 if it leaves the area. */
static unsigned long seg_address(struct exmap_call *call,
				 const struct exmap_seg *seg)
{
	u64 pages = vma_pages(call->vma);

	if (seg->first > pages || seg->count > pages - seg->first)
		return 0;
	return call->vma->vm_start + (seg->first << PAGE_SHIFT);
}

/*
 * Maps pages from the segment's reach on, to its end or until it is time to
 * pause. The hand is filled for what the batch may still want, so that a batch
 * of single pages takes its pages from the list at once. With an empty pool an
 * ALLOC may still pass over what is mapped.
 */
static int alloc_some(struct exmap_call *call, struct exmap_seg *seg)
{
	unsigned long addr = seg_address(call, seg);
	unsigned long end = addr + (seg->count << PAGE_SHIFT);
	bool any;
	int err;

	if (!addr)
		return -EINVAL;
	if (!seg->reach)
		call->wanted -= min_t(u64, call->wanted, seg->count);
	addr += seg->reach << PAGE_SHIFT;
	call->mapped = 0;
	call->visited = 0;
	do {
		u64 left = seg->count - seg->reach - call->visited;
		u64 want = min_t(u64, left, EXMAP_GRAB) + call->wanted;

		any = call->nr_hand ||
		      exmap_pool_take(call, min_t(u64, want, EXMAP_GRAB));
		err = exmap_map_range(call,
				      addr + (call->visited << PAGE_SHIFT),
				      end);
	} while (err == -EAGAIN && any && !exmap_should_pause(call));

	seg->done += call->mapped;
	seg->reach += call->visited;
	atomic64_add(call->mapped, &call->iface->allocated);
	if (err == -EAGAIN)
		return any ? 0 : -ENOMEM;
	return err;
}

static int free_some(struct exmap_call *call, struct exmap_seg *seg)
{
	unsigned long addr = seg_address(call, seg);
	unsigned long before = call->nr_gather, reached;

	if (!addr)
		return -EINVAL;
	reached = exmap_unmap_range(call, addr + (seg->reach << PAGE_SHIFT),
				    addr + (seg->count << PAGE_SHIFT));
	seg->reach = (reached - addr) >> PAGE_SHIFT;
	seg->done += call->nr_gather - before;
	return 0;
}

/**
 * exmap_change - map or unmap the pages of some segments
 *
 * One hold of mmap_lock, and at most one flush, unless there is so much to do
 * that others may want the lock. Sets done, reach and error of each; an empty
 * segment is done at once.
 *
 * Return: 0, or an error that concerns the call as a whole, in which case the
 * segments say nothing.
 */
int exmap_change(struct exmap_call *call, struct exmap_seg *segs,
		 unsigned int nr)
{
	unsigned int i;
	int err = exmap_call_lock(call, segs, nr);

	if (err)
		return err;
	for (i = 0; i < nr; i++) {
		struct exmap_seg *seg = &segs[i];

		while (seg->reach < seg->count && !seg->error) {
			if (exmap_should_pause(call)) {
				exmap_call_unlock(call);
				if (fatal_signal_pending(current))
					return -EINTR;
				cond_resched();
				err = exmap_call_lock(call, seg, nr - i);
				if (err)
					return err;
			}
			seg->error = call->removes ? free_some(call, seg) :
						     alloc_some(call, seg);
		}
	}
	exmap_call_unlock(call);
	return 0;
}

/* Pages that the segments may ask for; no segment is worth more than a grab. */
static u64 sum_counts(const struct exmap_seg *segs, unsigned int nr)
{
	u64 sum = 0;

	while (nr--)
		sum += min_t(u64, segs[nr].count, EXMAP_GRAB);
	return sum;
}

/*
 * Carries out one opcode, at most EXMAP_FREE, on some segments. Return: as
 * exmap_change().
 */
static int run(struct exmap_call *call, u32 opcode, struct exmap_seg *segs,
	       unsigned int nr)
{
	call->wanted = sum_counts(segs, nr);
	if (opcode == EXMAP_OP_READ)
		return exmap_read_segs(call, segs, nr);
	call->removes = opcode == EXMAP_OP_FREE;
	call->stop_at_mapped = false;
	return exmap_change(call, segs, nr);
}

/* Room for what one flush covers, or less where there is less to do. */
static struct exmap_seg *alloc_segs(unsigned int *nr)
{
	*nr = min_t(unsigned int, *nr, EXMAP_CHUNK);
	return kvmalloc_array(max(*nr, 1U), sizeof(struct exmap_seg),
			      GFP_KERNEL);
}

/* ---- the published ACTION: ranges in the interface's page ---- */

static unsigned int load_iovs(struct exmap_seg *segs, struct exmap_iov *iovs,
			      unsigned int nr)
{
	unsigned int i;

	memset(segs, 0, nr * sizeof(*segs));
	for (i = 0; i < nr; i++) {
		struct exmap_iov iov = { .value = READ_ONCE(iovs[i].value) };

		segs[i].first = iov.page;
		segs[i].count = iov.len;
	}
	return nr;
}

static unsigned int store_iovs(struct exmap_iov *iovs,
			       const struct exmap_seg *segs, unsigned int nr)
{
	unsigned int i, failed = 0;

	for (i = 0; i < nr; i++) {
		struct exmap_iov iov = { .value = 0 };

		iov.res = segs[i].error;
		iov.pages = segs[i].done;
		WRITE_ONCE(iovs[i].value, iov.value);
		failed += segs[i].error != 0;
	}
	return failed;
}

/**
 * exmap_action - the ACTION ioctl
 *
 * Return: the number of ranges that failed, each with a result of its own, or
 * an error that concerns all.
 */
long exmap_action(struct exmap_area *area,
		  const struct exmap_action_params *params)
{
	unsigned int at, nr, max = params->iov_len;
	struct exmap_seg few[8], *segs = few;
	struct exmap_call call;
	struct exmap_iov *iovs;
	long failed = 0;
	int err;

	err = exmap_call_begin(&call, area, params->interface);
	if (err)
		return err;
	if (params->opcode > EXMAP_OP_FREE ||
	    params->iov_len > EXMAP_USER_INTERFACE_PAGES)
		return -EINVAL;

	if (max > ARRAY_SIZE(few)) {
		segs = alloc_segs(&max);
		if (!segs)
			return -ENOMEM;
	}
	iovs = page_address(call.iface->page);
	for (at = 0; at < params->iov_len; at += nr) {
		nr = min_t(unsigned int, params->iov_len - at, max);
		load_iovs(segs, iovs + at, nr);
		err = run(&call, params->opcode, segs, nr);
		if (err)
			break;
		failed += store_iovs(iovs + at, segs, nr);
	}
	exmap_call_end(&call);
	if (segs != few)
		kvfree(segs);
	return err ? err : failed;
}

/* ---- BATCH: ranges in the caller's memory ---- */

static int load_ranges(struct exmap_seg *segs,
		       const struct exmap_range __user *ranges, unsigned int nr)
{
	struct exmap_range range;
	unsigned int i;

	memset(segs, 0, nr * sizeof(*segs));
	for (i = 0; i < nr; i++) {
		if (copy_from_user(&range, ranges + i, sizeof(range)))
			return -EFAULT;
		segs[i].first = range.first;
		segs[i].count = range.count;
		if (range.pad || !range.count)
			segs[i].count = U64_MAX;	/* leaves any area */
	}
	return 0;
}

static int store_ranges(struct exmap_range __user *ranges,
			const struct exmap_seg *segs, unsigned int nr,
			struct exmap_batch *batch)
{
	unsigned int i;

	for (i = 0; i < nr; i++) {
		batch->pages_done += segs[i].done;
		batch->ranges_failed += segs[i].error != 0;
		if (put_user(segs[i].done, &ranges[i].done) ||
		    put_user(segs[i].error, &ranges[i].error))
			return -EFAULT;
	}
	return 0;
}

static int run_ranges(struct exmap_call *call, struct exmap_batch *batch,
		      struct exmap_seg *segs, unsigned int max)
{
	struct exmap_range __user *ranges = u64_to_user_ptr(batch->ranges);
	unsigned int at, nr;
	int err;

	for (at = 0; at < batch->nr_ranges; at += nr) {
		nr = min_t(unsigned int, batch->nr_ranges - at, max);
		err = load_ranges(segs, ranges + at, nr);
		if (err)
			return err;
		err = run(call, batch->opcode, segs, nr);
		if (!err)
			err = store_ranges(ranges + at, segs, nr, batch);
		if (err)
			return err;
	}
	return 0;
}

/**
 * exmap_batch - the BATCH ioctl
 *
 * Return: 0 if each range was tried and has its result; an error that concerns
 * all. After -EFAULT and -EINTR some ranges may have been carried out.
 */
long exmap_batch(struct exmap_area *area, struct exmap_batch __user *arg)
{
	struct exmap_seg few[8], *segs = few;
	struct exmap_batch batch;
	struct exmap_call call;
	unsigned int max;
	int err;

	if (copy_from_user(&batch, arg, sizeof(batch)))
		return -EFAULT;
	err = exmap_call_begin(&call, area, batch.interface);
	if (err)
		return err;
	if (batch.flags || batch.pad || batch.opcode > EXMAP_OP_FREE ||
	    batch.nr_ranges > EXMAP_MAX_RANGES)
		return -EINVAL;

	max = batch.nr_ranges;
	if (max > ARRAY_SIZE(few)) {
		segs = alloc_segs(&max);
		if (!segs)
			return -ENOMEM;
	}
	batch.pages_done = 0;
	batch.ranges_failed = 0;
	err = run_ranges(&call, &batch, segs, max);
	exmap_call_end(&call);
	if (segs != few)
		kvfree(segs);
	if (!err && copy_to_user(arg, &batch, sizeof(batch)))
		err = -EFAULT;
	return err;
}

/* ---- pread and preadv: ranges as addresses ---- */

/*
 * Fills @segs from @iter without moving it. Return: segments, or -EINVAL for
 * one that is not made of whole pages or begins before the area.
 */
static int load_iter(struct exmap_seg *segs, unsigned int max,
		     const struct iov_iter *iter, unsigned long start)
{
	struct iov_iter copy = *iter;
	unsigned int nr = 0;

	memset(segs, 0, max * sizeof(*segs));
	while (nr < max && iov_iter_count(&copy)) {
		unsigned long addr;
		size_t len;

		exmap_iter_segment(&copy, &addr, &len);
		iov_iter_advance(&copy, len);
		if (!len)
			continue;
		if (addr < start || ((addr | len) & ~PAGE_MASK))
			return -EINVAL;
		segs[nr].first = (addr - start) >> PAGE_SHIFT;
		segs[nr].count = len >> PAGE_SHIFT;
		nr++;
	}
	return nr;
}

/*
 * The bytes dealt with from the beginning on without a gap, and the error of
 * the segment that ended it. As in the published module an ALLOC of a segment
 * counts if all of it was vacant. What a READ did beyond the gap is undone, for
 * the caller could not tell.
 */
static ssize_t settle(struct exmap_call *call, u32 opcode,
		      struct exmap_seg *segs, unsigned int nr, int *err)
{
	ssize_t bytes = 0;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		*err = segs[i].error;
		if (opcode == EXMAP_OP_ALLOC && !*err &&
		    segs[i].done < segs[i].count)
			break;
		bytes += segs[i].reach << PAGE_SHIFT;
		if (*err || segs[i].reach < segs[i].count)
			break;
	}
	if (opcode == EXMAP_OP_READ && i + 1 < nr) {
		unsigned int beyond = i + 1;

		for (i = beyond; i < nr; i++) {
			segs[i].count = segs[i].done;
			segs[i].done = 0;
			segs[i].reach = 0;
			segs[i].error = 0;
		}
		/* If the lock fails the area is gone, or the process dies. */
		call->removes = true;
		exmap_change(call, segs + beyond, nr - beyond);
	}
	return bytes;
}

static ssize_t run_iter(struct exmap_call *call, u32 opcode,
			struct iov_iter *iter, struct exmap_seg *segs,
			unsigned int max)
{
	unsigned long start = READ_ONCE(call->area->start);
	ssize_t total = 0;

	if (!start)
		return -EINVAL;
	/* Segments count from here, so the area must still begin here. */
	call->start = start;
	while (iov_iter_count(iter)) {
		u64 pages;
		ssize_t bytes;
		int i, err;
		int nr = load_iter(segs, max, iter, start);

		if (nr <= 0)
			return total ? total : nr;
		pages = 0;
		for (i = 0; i < nr; i++)
			pages += segs[i].count;
		err = run(call, opcode, segs, nr);
		if (err)
			return total ? total : err;
		bytes = settle(call, opcode, segs, nr, &err);
		total += bytes;
		if (bytes < pages << PAGE_SHIFT)
			return total || err == -ENODATA ? total : err;
		iov_iter_advance(iter, bytes);
	}
	return total;
}

/**
 * exmap_read_iter - pread() and preadv() on the device
 *
 * The position is interface | opcode << 8, the buffers are ranges of the area.
 *
 * Return: bytes dealt with, from the beginning on; an error if none were, but
 * 0 where the file has ended.
 */
ssize_t exmap_read_iter(struct kiocb *kiocb, struct iov_iter *iter)
{
	struct exmap_file *ef = kiocb->ki_filp->private_data;
	u64 pos = kiocb->ki_pos;
	u32 opcode = pos >> 8;
	struct exmap_seg small[4], *segs = small;
	unsigned int max = ARRAY_SIZE(small);
	struct exmap_call call;
	ssize_t ret;

	if (kiocb->ki_flags & IOCB_NOWAIT)
		return -EAGAIN;
	/* Pairs with the exchange in ioctl_clone(). */
	ret = exmap_call_begin(&call, smp_load_acquire(&ef->area), pos & 0xff);
	if (ret)
		return ret;
	if (pos >> 16 || opcode > EXMAP_OP_ALLOC ||
	    !(iter_is_ubuf(iter) || iter_is_iovec(iter)))
		return -EINVAL;

	if (iter_is_iovec(iter) && iter->nr_segs > max) {
		max = iter->nr_segs;
		segs = alloc_segs(&max);
		if (!segs)
			return -ENOMEM;
	}
	ret = run_iter(&call, opcode, iter, segs, max);
	exmap_call_end(&call);
	if (segs != small)
		kvfree(segs);
	return ret;
}

/* ---- io_uring ---- */

static long uring_run(struct exmap_area *area, u32 op,
		      struct exmap_uring_range range)
{
	struct iov_iter iter;
	struct exmap_seg seg;
	struct exmap_call call;
	long ret;

	ret = exmap_call_begin(&call, area, op & 0xff);
	if (ret)
		return ret;
	if (op >> 8 > EXMAP_OP_FREE || range.length > INT_MAX)
		return -EINVAL;
	iov_iter_ubuf(&iter, READ, u64_to_user_ptr(range.address),
		      range.length);
	ret = run_iter(&call, op >> 8, &iter, &seg, 1);
	exmap_call_end(&call);
	return ret;
}

/**
 * exmap_uring_cmd - IORING_OP_URING_CMD
 *
 * cmd_op is interface | opcode << 8 with an exmap_uring_range in the entry, or
 * EXMAP_IOCTL_BATCH with the address of an exmap_batch. Any of them may sleep,
 * so io_uring is asked to call again from one of its workers.
 */
int exmap_uring_cmd(struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	struct exmap_file *ef = cmd->file->private_data;
	struct exmap_uring_range range;
	struct exmap_area *area;
	long ret;

	/* Neither buffers that are registered nor results without end. */
	if (cmd->flags & EXMAP_URING_FLAGS)
		return -EINVAL;
	if (issue_flags & IO_URING_F_NONBLOCK)
		return -EAGAIN;
	/* Pairs with the exchange in ioctl_clone(). */
	area = smp_load_acquire(&ef->area);
	/* The entry is shared with the program until it is copied. */
	memcpy(&range, exmap_uring_payload(cmd), sizeof(range));
	if (cmd->cmd_op == EXMAP_IOCTL_BATCH)
		ret = exmap_batch(area, u64_to_user_ptr(range.address));
	else
		ret = uring_run(area, cmd->cmd_op, range);
	/* Linux 6.1 loses a positive result that is returned from a worker. */
	exmap_uring_done(cmd, ret, issue_flags);
	return -EIOCBQUEUED;
}
