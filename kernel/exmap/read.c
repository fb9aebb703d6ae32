// SPDX-License-Identifier: GPL-2.0-only
/*
 * read.c - READ: map pages and fill them from the file, in one call
 *
 * A wave of segments is mapped under mmap_lock; then, without it, one read for
 * each is submitted to the file, all at once, straight into the new pages; and
 * when all are complete, pages that were not filled are unmapped again. The
 * pages can be seen while they fill: it is for the program to keep others from
 * looking, as it must on a page whose content changes.
 *
 * A READ stops at a page that is mapped already (-EEXIST): it never changes
 * one. At the end of the file the rest of the last page is zeroed, and pages
 * beyond it stay unmapped.
 */
#include <linux/completion.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/uio.h>

#include "compat.h"
#include "internal.h"

struct exmap_wave {
	atomic_t pending;
	struct completion done;
};

struct exmap_io {
	struct kiocb kiocb;
	struct iov_iter iter;
	struct exmap_wave *wave;
	unsigned long addr;
	long result;			/* bytes, or a negative errno */
};

static void wave_put(struct exmap_wave *wave)
{
	if (atomic_dec_and_test(&wave->pending))
		complete(&wave->done);
}

/* From any context. */
static void io_complete(struct kiocb *kiocb, long result)
{
	struct exmap_io *io = container_of(kiocb, struct exmap_io, kiocb);

	io->result = result;
	wave_put(io->wave);
}

static void io_submit(struct exmap_io *io, struct exmap_call *call,
		      const struct exmap_seg *seg)
{
	struct file *file = call->pool->backing;
	size_t len = seg->done << PAGE_SHIFT;
	ssize_t ret;

	init_sync_kiocb(&io->kiocb, file);
	io->addr = call->start + (seg->first << PAGE_SHIFT);
	io->kiocb.ki_pos = seg->first << PAGE_SHIFT;
	io->kiocb.ki_complete = io_complete;
	iov_iter_ubuf(&io->iter, READ, (void __user *)io->addr, len);
	/* With the checks and the notifications of any read. */
	ret = vfs_iocb_iter_read(file, &io->kiocb, &io->iter);
	if (ret != -EIOCBQUEUED)
		io_complete(&io->kiocb, ret);
}

static void fill_wave(struct exmap_call *call, struct exmap_wave *wave,
		      struct exmap_seg *segs, struct exmap_io *ios,
		      unsigned int nr)
{
	unsigned int i;

	atomic_set(&wave->pending, 1);
	init_completion(&wave->done);
	for (i = 0; i < nr; i++) {
		if (!segs[i].done)
			continue;
		ios[i].wave = wave;
		atomic_inc(&wave->pending);
		io_submit(&ios[i], call, &segs[i]);
	}
	wave_put(wave);
	/* Not killable: the file system writes into pages and kiocbs. */
	wait_for_completion_io(&wave->done);
}

/* Pages of a segment that are filled, the last perhaps padded with zeroes. */
static u64 pages_filled(struct exmap_seg *seg, const struct exmap_io *io)
{
	unsigned long rest;

	if (io->result < 0) {
		seg->error = io->result;
		return 0;
	}
	rest = io->result & ~PAGE_MASK;
	if (rest && clear_user((void __user *)io->addr + io->result,
			       PAGE_SIZE - rest))
		return io->result >> PAGE_SHIFT;
	return DIV_ROUND_UP(io->result, PAGE_SIZE);
}

/*
 * Unmaps what was mapped but not filled; sets done and reach accordingly. If
 * the area has been unmapped meanwhile there is nothing to unmap; and if it
 * has been mapped anew, what the addresses mean now is none of READ's business.
 */
static void trim_wave(struct exmap_call *call, struct exmap_seg *segs,
		      struct exmap_io *ios, unsigned int nr)
{
	unsigned int i;

	call->removes = true;
	for (i = 0; i < nr; i++) {
		u64 mapped = segs[i].done, filled;
		struct exmap_seg rest;

		if (!mapped)
			continue;
		filled = min(pages_filled(&segs[i], &ios[i]), mapped);
		segs[i].done = filled;
		segs[i].reach = filled;
		atomic64_add(filled, &call->iface->read);
		if (filled == mapped)
			continue;
		if (!segs[i].error || segs[i].error == -EEXIST)
			segs[i].error = -ENODATA;
		rest = (struct exmap_seg) {
			.first = segs[i].first + filled,
			.count = mapped - filled,
		};
		exmap_change(call, &rest, 1);
	}
}

/* Maps and fills as many segments as are read at a time, or fewer. */
static int read_wave(struct exmap_call *call, struct exmap_seg *segs,
		     struct exmap_io *ios, unsigned int nr)
{
	struct exmap_wave wave;
	unsigned int i;
	int err;

	for (i = 0; i < nr; i++) {
		if (segs[i].count > EXMAP_READ_MAX)
			segs[i].error = -EINVAL;
	}
	call->removes = false;
	call->stop_at_mapped = true;
	err = exmap_change(call, segs, nr);
	if (err)
		return err;
	fill_wave(call, &wave, segs, ios, nr);
	trim_wave(call, segs, ios, nr);
	return 0;
}

/**
 * exmap_read_segs - carry out READ on some segments
 *
 * Errors of a segment: -EINVAL outside the area or beyond EXMAP_READ_MAX,
 * -EEXIST at a mapped page, -ENOMEM when the pool is exhausted, -ENODATA past
 * the end of the file, or what the file reports. In each case done pages from
 * its first on are filled, and none beyond them was left mapped.
 *
 * Return: 0, or an error that concerns all: -EINVAL without a file or area,
 * -EINTR when killed between two waves.
 */
int exmap_read_segs(struct exmap_call *call, struct exmap_seg *segs,
		    unsigned int nr)
{
	const unsigned int width = min_t(unsigned int, nr, EXMAP_WAVE);
	struct exmap_io one, *ios = &one;
	unsigned int at;
	int err = 0;

	if (!call->pool->backing)
		return -EINVAL;
	if (width > 1) {
		ios = kmalloc_array(width, sizeof(*ios), GFP_KERNEL);
		if (!ios)
			return -ENOMEM;
	}
	for (at = 0; at < nr && !err; at += width) {
		if (fatal_signal_pending(current))
			err = -EINTR;
		else
			err = read_wave(call, segs + at, ios,
					min(nr - at, width));
	}
	if (ios != &one)
		kfree(ios);
	return err;
}
