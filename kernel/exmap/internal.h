/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * internal.h - the module's own types, and the rules that hold between them
 *
 * An *area* is what one open("/dev/exmap") makes: a stretch of address space
 * of one process, and a *pool* of physical pages that may be mapped in it.
 *
 * What owns a page of the pool: at any time exactly one of
 *   - an interface's free list, or the list of parked pages;
 *   - a call that runs (struct exmap_call: its hand and its gather);
 *   - a page-table entry of the area.
 * The first two are EXMAP_HELD, the last EXMAP_MAPPED, kept in page->private
 * beside a generation, which grows with each mapping. To take a page that is
 * EXMAP_MAPPED without having cleared its entry (only exmap_pool_recover()
 * does) is to exchange that word, generation and all.
 *
 * References. The pool holds one on each page from SETUP to the end. An entry
 * holds one more and a map count, just as vm_insert_page() would leave them,
 * so that the kernel may zap entries (munmap, exit, MADV_DONTNEED) at any time
 * by its own rules. Direct I/O and other pins hold more. A page that FREE took
 * out of its entry is handed out again only when the pool's reference is the
 * last: otherwise it is parked.
 *
 * Locks, outermost first:
 *   mmap_lock        read for every look at or change of the area's entries;
 *                    the area's VMA is looked up anew under it each time. What
 *                    was removed under one hold of it is flushed before its
 *                    end (tlb.c);
 *   page-table lock  for every look at or change of an entry;
 *   iface->lock, pool->parked_lock
 *                    inside mmap_lock or alone; never together, never inside a
 *                    page-table lock, and nothing is taken inside them.
 * SETUP takes mmap_lock for writing, to charge the pool and to hear of the
 * address space's end, and holds nothing then. The notifier's callbacks run
 * under the notifiers' SRCU, with or without mmap_lock, and take no lock.
 *
 * A blank page (EXMAP_FAULTS_BLANK) is the kernel's page of zeroes. Entries
 * for it are special and read-only, hold no reference, and count as not mapped
 * everywhere; ALLOC replaces them, at the price of a flush. exmap.rst says why
 * that is safe, and lists every rule of mm that the module relies on.
 */
#ifndef EXMAP_INTERNAL_H
#define EXMAP_INTERNAL_H

#include <linux/atomic.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/spinlock.h>

#include "exmap.h"

#define EXMAP_HELD	1UL
#define EXMAP_MAPPED	2UL
#define EXMAP_STATE	3UL	/* mask */
#define EXMAP_GENERATION 4UL	/* step */

/* Ranges worked on at a time: what one TLB flush covers. */
#define EXMAP_CHUNK	512
/* Reads that are under way at a time. */
#define EXMAP_WAVE	64
/* Pages of one read: file systems expect no more bytes at once. */
#define EXMAP_READ_MAX	(MAX_RW_COUNT >> PAGE_SHIFT)
/* Pages that one flush covers, at most (and a page table's more). */
#define EXMAP_GATHER_MAX 4096
/* Entries looked at before mmap_lock is given up to those that wait for it. */
#define EXMAP_STEPS	4096
/* Pages taken from or stolen into a list at a time, at most. */
#define EXMAP_GRAB	512
/* Parked pages looked at under one hold of their lock. */
#define EXMAP_UNPARK	256
#define EXMAP_MAX_RANGES 65536

struct exmap_iface {
	spinlock_t lock;		/* for free and nr_free */
	struct list_head free;		/* by page->lru, last in first out */
	unsigned long nr_free;
	u32 last_victim;
	u32 random;
	struct page *page;		/* shared with the program */
	atomic64_t allocated, released, read, flushes, flushes_blank;
	atomic64_t stolen_last, stolen_random, stolen_any;
} ____cacheline_aligned_in_smp;

struct exmap_pool {
	unsigned long nr_pages;
	struct page **pages;
	u32 nr_ifaces;
	struct exmap_iface *ifaces;
	struct file *backing;		/* may be NULL */

	spinlock_t parked_lock;		/* for parked and nr_parked */
	struct list_head parked;
	unsigned long nr_parked;

	atomic64_t recovered;
	long searched;			/* area->zaps before the last search */
};

struct exmap_area {
	struct kref ref;		/* one for each file that names it */
	struct mm_struct *mm;		/* owner, set once */
	atomic_t setup;			/* 0, or 1 once SETUP has begun */
	struct exmap_pool *pool;	/* set last by SETUP, taken by the end */
	bool blank;			/* loads from nothing see zeroes */
	unsigned long start, end;	/* under mmap_lock; 0 when not mapped */
	int nr_vmas;			/* under mmap_lock */
	unsigned long epoch;		/* under mmap_lock; grows with each mmap */
	struct mmu_notifier notifier;	/* once set up */
	atomic_long_t zaps;		/* how often the kernel has unmapped something */
};

/* file->private_data */
struct exmap_file {
	struct exmap_area *own;		/* made by open() */
	struct exmap_area *area;	/* own, or the one that CLONE named */
};

/* A range on its way through the module, whatever interface it came by. */
struct exmap_seg {
	u64 first;			/* page of the area */
	u64 count;
	u64 done;			/* pages mapped, released or read */
	u64 reach;			/* pages from first on that are dealt with */
	int error;
};

/* What one system call holds while it runs. */
struct exmap_call {
	struct exmap_area *area;
	struct exmap_pool *pool;
	struct exmap_iface *iface;
	struct mm_struct *mm;
	unsigned long epoch;		/* of the area, from the first lock on */
	unsigned long start;		/* ditto, or as the segments assume it */
	bool removes;			/* FREE, and not ALLOC or READ */
	bool stop_at_mapped;		/* READ */

	/* Between lock and unlock */
	struct vm_area_struct *vma;
	bool announced;			/* that entries may be removed: */
	struct mmu_notifier_range range; /* from these addresses */
	unsigned long lo, hi;		/* and were from these */
	bool met;			/* a page that was mapped already */
	unsigned long steps;		/* entries looked at */
	long rss;			/* not yet told to the mm */

	struct list_head hand;		/* pages to map */
	unsigned long nr_hand;
	u64 wanted;			/* pages that later ranges may ask for */
	unsigned long mapped;		/* by the range in progress */
	unsigned long visited;		/* ditto, those found mapped included */

	struct list_head gather;	/* pages unmapped */
	unsigned long nr_gather;
};

/* area.c */
struct exmap_area *exmap_area_create(void);
void exmap_area_put(struct exmap_area *area);
int exmap_area_bind(struct exmap_area *area);
int exmap_area_setup(struct exmap_area *area,
		     const struct exmap_ioctl_setup *setup);
int exmap_area_options(struct exmap_area *area,
		       const struct exmap_options *options);
int exmap_area_mmap(struct exmap_area *area, struct vm_area_struct *vma);
int exmap_iface_mmap(struct exmap_area *area, struct vm_area_struct *vma,
		     unsigned long index);
int exmap_call_lock(struct exmap_call *call, const struct exmap_seg *segs,
		    unsigned int nr);
void exmap_call_unlock(struct exmap_call *call);
extern const struct file_operations exmap_fops;

/* pool.c */
struct exmap_pool *exmap_pool_create(unsigned long nr_pages, u32 nr_ifaces);
void exmap_pool_destroy(struct exmap_pool *pool);
unsigned long exmap_pool_take(struct exmap_call *call, unsigned long want);
void exmap_pool_give(struct exmap_iface *iface, struct list_head *pages,
		     unsigned long nr);
void exmap_pool_park(struct exmap_pool *pool, struct page *page);
unsigned long exmap_pool_recover(struct exmap_pool *pool,
				 struct exmap_iface *iface);
unsigned long exmap_pool_nr_free(struct exmap_pool *pool);

/* pages.c */
int exmap_pages_init(void);
bool exmap_should_pause(struct exmap_call *call);
int exmap_map_range(struct exmap_call *call, unsigned long addr,
		    unsigned long end);
unsigned long exmap_unmap_range(struct exmap_call *call, unsigned long addr,
				unsigned long end);
void exmap_gather_release(struct exmap_call *call);
int exmap_map_blank(struct vm_area_struct *vma, unsigned long addr);

/* ops.c */
int exmap_call_begin(struct exmap_call *call, struct exmap_area *area,
		     u32 iface);
void exmap_call_end(struct exmap_call *call);
int exmap_change(struct exmap_call *call, struct exmap_seg *segs,
		 unsigned int nr);
long exmap_action(struct exmap_area *area,
		  const struct exmap_action_params *params);
long exmap_batch(struct exmap_area *area, struct exmap_batch __user *arg);
ssize_t exmap_read_iter(struct kiocb *kiocb, struct iov_iter *iter);
int exmap_uring_cmd(struct io_uring_cmd *cmd, unsigned int issue_flags);

/* read.c */
int exmap_read_segs(struct exmap_call *call, struct exmap_seg *segs,
		    unsigned int nr);

/* tlb.c */
int exmap_tlb_init(void);
void exmap_removal_begin(struct exmap_call *call, unsigned long lo,
			 unsigned long hi);
void exmap_removal_end(struct exmap_call *call);

#endif /* EXMAP_INTERNAL_H */
