// SPDX-License-Identifier: GPL-2.0-only
/*
 * area.c - the life of an area: SETUP, mmap, what mmap forbids, the end
 *
 * An area belongs to one address space, that of the process which first sets
 * it up or maps it; calls from any other are refused, and a forked child does
 * not inherit the mapping. The files that name an area keep it in being, and
 * a mapping keeps its file. Its pages return to the pool at munmap; the pool
 * goes with the last file, or with the address space if that ends first, even
 * if another process still has a file.
 */
#include <linux/blkdev.h>
#include <linux/file.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "compat.h"
#include "internal.h"

struct exmap_area *exmap_area_create(void)
{
	struct exmap_area *area = kzalloc(sizeof(*area), GFP_KERNEL_ACCOUNT);

	if (area)
		kref_init(&area->ref);
	return area;
}

/*
 * Frees the pool, unless that is done. By now no call can run: no file is left,
 * or no thread in the address space. Return: pages freed.
 */
static unsigned long drop_pool(struct exmap_area *area)
{
	struct exmap_pool *pool = xchg(&area->pool, NULL);
	unsigned long nr_pages = 0;

	if (pool) {
		nr_pages = pool->nr_pages;
		exmap_pool_destroy(pool);
	}
	return nr_pages;
}

static void area_free(struct kref *ref)
{
	struct exmap_area *area = container_of(ref, struct exmap_area, ref);
	unsigned long nr_pages = drop_pool(area);

	if (nr_pages)
		account_locked_vm(area->mm, nr_pages, false);
	/* Waits for callbacks that run. */
	if (atomic_read(&area->setup))
		mmu_notifier_unregister(&area->notifier, area->mm);
	if (area->mm)
		mmdrop(area->mm);
	kfree(area);
}

/* Not under mmap_lock. */
void exmap_area_put(struct exmap_area *area)
{
	kref_put(&area->ref, area_free);
}

/**
 * exmap_area_bind - make the area the current process's, if it has no owner
 *
 * Return: 0, or -EPERM if it is another's.
 */
int exmap_area_bind(struct exmap_area *area)
{
	struct mm_struct *mm = current->mm;
	struct mm_struct *old;

	if (!mm)
		return -EPERM;
	if (READ_ONCE(area->mm) == mm)
		return 0;
	mmgrab(mm);
	old = cmpxchg(&area->mm, NULL, mm);
	if (!old)
		return 0;
	mmdrop(mm);
	return old == mm ? 0 : -EPERM;
}

/* The file to read from, with a reference, or an error pointer. */
static struct file *get_backing(int fd)
{
	struct file *file = fget(fd);
	umode_t mode;

	if (!file)
		return ERR_PTR(-EBADF);
	mode = file_inode(file)->i_mode;
	if (!(file->f_mode & FMODE_READ)) {
		fput(file);
		return ERR_PTR(-EBADF);
	}
	/* Files and block devices only: not an exmap, which would recurse. */
	if ((!S_ISREG(mode) && !S_ISBLK(mode)) || !file->f_op->read_iter) {
		fput(file);
		return ERR_PTR(-EINVAL);
	}
	return file;
}

static int create_pool(struct exmap_area *area,
		       const struct exmap_ioctl_setup *setup)
{
	struct exmap_pool *pool;
	struct file *backing = NULL;
	int err;

	if (setup->fd >= 0) {
		backing = get_backing(setup->fd);
		if (IS_ERR(backing))
			return PTR_ERR(backing);
	}
	err = account_locked_vm(area->mm, setup->buffer_size, true);
	if (err)
		goto fail_backing;

	pool = exmap_pool_create(setup->buffer_size, setup->max_interfaces);
	if (IS_ERR(pool)) {
		err = PTR_ERR(pool);
		goto fail_account;
	}
	pool->backing = backing;
	/* Pairs with exmap_call_begin(): a pool that is seen is seen whole. */
	smp_store_release(&area->pool, pool);
	return 0;

fail_account:
	account_locked_vm(area->mm, setup->buffer_size, false);
fail_backing:
	if (backing)
		fput(backing);
	return err;
}

/* ---- what the kernel tells about the address space ---- */

/*
 * It ends. No thread is left in it that may use the pool, but another process
 * may have a file of the area, and keep it for ever. Where the area is mapped
 * area_close() follows, outside SRCU. Here other removals of notifiers wait
 * while the pool is freed.
 */
static void notifier_release(struct mmu_notifier *notifier,
			     struct mm_struct *mm)
{
	struct exmap_area *area =
		container_of(notifier, struct exmap_area, notifier);

	if (!area->nr_vmas)
		drop_pool(area);
}

/*
 * It has unmapped something of the area. That it did is all that need be
 * known, and only when the pool runs short: see recover_when_due(). Calls of
 * the module announce what they remove, too: those know what it was.
 */
static void notifier_invalidate_end(struct mmu_notifier *notifier,
				    const struct mmu_notifier_range *range)
{
	struct exmap_area *area =
		container_of(notifier, struct exmap_area, notifier);

	if (range->event == MMU_NOTIFY_MIGRATE && range->owner == area)
		return;
	if (range->start < READ_ONCE(area->end) &&
	    range->end > READ_ONCE(area->start))
		atomic_long_inc(&area->zaps);
}

static const struct mmu_notifier_ops notifier_ops = {
	.release = notifier_release,
	.invalidate_range_end = notifier_invalidate_end,
};

/**
 * exmap_area_setup - carry out SETUP
 *
 * Return: 0; -EBUSY if it was done before; -EINVAL for a bad number of
 * interfaces or pages, or a file that cannot be read at an offset; -EBADF;
 * -ENOMEM; -EINTR when killed; -EPERM for an area of another process.
 */
int exmap_area_setup(struct exmap_area *area,
		     const struct exmap_ioctl_setup *setup)
{
	int err;

	if (setup->max_interfaces < 1 ||
	    setup->max_interfaces > EXMAP_MAX_INTERFACES ||
	    !setup->buffer_size)
		return -EINVAL;
	if (setup->buffer_size > totalram_pages())
		return -ENOMEM;
	err = exmap_area_bind(area);
	if (err)
		return err;
	if (atomic_cmpxchg(&area->setup, 0, 1))
		return -EBUSY;
	area->notifier.ops = &notifier_ops;
	err = mmu_notifier_register(&area->notifier, area->mm);
	if (!err) {
		err = create_pool(area, setup);
		if (err)
			mmu_notifier_unregister(&area->notifier, area->mm);
	}
	if (err)
		atomic_set(&area->setup, 0);
	return err;
}

/**
 * exmap_area_options - carry out OPTIONS
 *
 * Return: 0; -EINVAL for a choice that does not exist; -EBUSY while the area
 * is mapped; -EPERM for an area of another process; -EINTR.
 */
int exmap_area_options(struct exmap_area *area,
		       const struct exmap_options *options)
{
	int err;

	if (options->faults > EXMAP_FAULTS_BLANK ||
	    options->pad[0] || options->pad[1] || options->pad[2])
		return -EINVAL;
	err = exmap_area_bind(area);
	if (err)
		return err;
	if (mmap_write_lock_killable(area->mm))
		return -EINTR;
	if (area->nr_vmas)
		err = -EBUSY;
	else
		area->blank = options->faults == EXMAP_FAULTS_BLANK;
	mmap_write_unlock(area->mm);
	return err;
}

/* ---- the area's mapping ---- */

/*
 * A second mapping in the same address space appears for a moment while the
 * kernel attempts an mremap that area_mremap() then refuses. One in another is
 * made by fork, if the program cleared VM_DONTCOPY with MADV_DOFORK: it stays
 * empty.
 */
static void area_open(struct vm_area_struct *vma)
{
	struct exmap_area *area = vma->vm_private_data;

	if (vma->vm_mm == area->mm)
		area->nr_vmas++;
	else
		exmap_vm_flags_set(vma, VM_WIPEONFORK | VM_DONTCOPY);
}

/*
 * The kernel has removed and flushed the entries. At the end of the address
 * space no thread is left that may use the pool.
 */
static void area_close(struct vm_area_struct *vma)
{
	struct exmap_area *area = vma->vm_private_data;
	struct exmap_pool *pool;

	if (vma->vm_mm != area->mm || --area->nr_vmas)
		return;
	WRITE_ONCE(area->start, 0);
	WRITE_ONCE(area->end, 0);
	/* Pairs with create_pool(), which may run. */
	pool = smp_load_acquire(&area->pool);
	if (!atomic_read(&area->mm->mm_users))
		drop_pool(area);
	else if (pool)
		exmap_pool_recover(pool, &pool->ifaces[0]);
}

/* Pages come by ALLOC and READ only; see README.md, "Faults". */
static vm_fault_t area_fault(struct vm_fault *vmf)
{
	return VM_FAULT_SIGSEGV;
}

/*
 * The kernel holds mmap_lock, or that of the VMA. The protection that it made
 * for the area is read-only, as the operations have a pfn_mkwrite: the kernel's
 * own page of zeroes must not be mapped otherwise.
 */
static vm_fault_t blank_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct exmap_area *area = vma->vm_private_data;

	if ((vmf->flags & FAULT_FLAG_WRITE) || vma->vm_mm != area->mm ||
	    WARN_ON_ONCE(pgprot_val(vma->vm_page_prot) & _PAGE_RW))
		return VM_FAULT_SIGSEGV;
	if (exmap_map_blank(vma, vmf->address & PAGE_MASK))
		return VM_FAULT_OOM;
	return VM_FAULT_NOPAGE;
}

/* A store to a blank page, which the kernel would otherwise make writable. */
static vm_fault_t blank_pfn_mkwrite(struct vm_fault *vmf)
{
	return VM_FAULT_SIGSEGV;
}

static int area_may_split(struct vm_area_struct *vma, unsigned long addr)
{
	return -EINVAL;
}

static int area_mremap(struct vm_area_struct *vma)
{
	return -EINVAL;
}

static int area_mprotect(struct vm_area_struct *vma, unsigned long start,
			 unsigned long end, unsigned long newflags)
{
	return -EINVAL;
}

static const struct vm_operations_struct area_vm_ops = {
	.open = area_open,
	.close = area_close,
	.fault = area_fault,
	.may_split = area_may_split,
	.mremap = area_mremap,
	.mprotect = area_mprotect,
};

/*
 * With blank pages. Other areas have no pfn_mkwrite, since the kernel refuses
 * long-term pins, as of registered buffers, where there is one.
 */
static const struct vm_operations_struct blank_vm_ops = {
	.open = area_open,
	.close = area_close,
	.fault = blank_fault,
	.pfn_mkwrite = blank_pfn_mkwrite,
	.may_split = area_may_split,
	.mremap = area_mremap,
	.mprotect = area_mprotect,
};

/**
 * exmap_area_mmap - mmap() of the area, under mmap_lock for writing
 *
 * Return: 0; -EBUSY if it is mapped; -EINVAL unless shared, readable, writable
 * and not executable; -EPERM for an area of another process.
 */
int exmap_area_mmap(struct exmap_area *area, struct vm_area_struct *vma)
{
	const unsigned long wanted = VM_READ | VM_WRITE | VM_SHARED;
	int err;

	if ((vma->vm_flags & (wanted | VM_EXEC)) != wanted)
		return -EINVAL;
	err = exmap_area_bind(area);
	if (err)
		return err;
	if (area->nr_vmas)
		return -EBUSY;
	exmap_vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTCOPY |
				VM_DONTDUMP | VM_NOHUGEPAGE);
	vma->vm_private_data = area;
	vma->vm_ops = area->blank ? &blank_vm_ops : &area_vm_ops;
	area->nr_vmas = 1;
	area->epoch++;
	WRITE_ONCE(area->start, vma->vm_start);
	WRITE_ONCE(area->end, vma->vm_end);
	return 0;
}

/* The addresses from which the call may remove entries. */
static void announce(struct exmap_call *call, const struct exmap_seg *segs,
		     unsigned int nr)
{
	u64 pages = vma_pages(call->vma), first = pages, last = 0;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		if (segs[i].first >= pages || !segs[i].count)
			continue;
		first = min(first, segs[i].first);
		last = max(last, segs[i].first +
			   min(segs[i].count, pages - segs[i].first));
	}
	call->announced = first < last;
	if (call->announced)
		exmap_removal_begin(call,
				    call->vma->vm_start + (first << PAGE_SHIFT),
				    call->vma->vm_start + (last << PAGE_SHIFT));
}

/**
 * exmap_call_lock - lock the address space and find the area in it
 * @segs: what will be changed under the lock
 *
 * The VMA is looked up anew, because munmap takes it out of the tree before
 * area_close() hears of it, and frees its page tables in between.
 *
 * Return: 0 with mmap_lock held for reading and call->vma valid; -EINVAL if
 * the area is not mapped, or not as it was when the call first looked; -EINTR.
 */
int exmap_call_lock(struct exmap_call *call, const struct exmap_seg *segs,
		    unsigned int nr)
{
	struct exmap_area *area = call->area;
	struct vm_area_struct *vma;
	unsigned long start;

	if (mmap_read_lock_killable(call->mm))
		return -EINTR;
	start = READ_ONCE(area->start);
	vma = start ? find_vma(call->mm, start) : NULL;
	if (!vma || vma->vm_start != start || vma->vm_private_data != area ||
	    (vma->vm_ops != &area_vm_ops && vma->vm_ops != &blank_vm_ops) ||
	    (call->start && call->start != start) ||
	    (call->epoch && call->epoch != area->epoch)) {
		mmap_read_unlock(call->mm);
		return -EINVAL;
	}
	call->vma = vma;
	call->epoch = area->epoch;
	call->start = start;
	call->met = false;
	call->steps = 0;
	/* Only where there are blank pages does bringing one remove another. */
	if (call->removes || area->blank)
		announce(call, segs, nr);
	return 0;
}

/*
 * What was removed is flushed before a thread that waits to change the mapping
 * can find the entries empty.
 */
void exmap_call_unlock(struct exmap_call *call)
{
	if (call->announced)
		exmap_removal_end(call);
	call->announced = false;
	/* The peak is noted before it is left. */
	if (call->rss < 0)
		update_hiwater_rss(call->mm);
	if (call->rss)
		exmap_rss_add(call->mm, call->rss);
	call->rss = 0;
	call->vma = NULL;
	mmap_read_unlock(call->mm);
	exmap_gather_release(call);
}

/* ---- the mappings of interface pages ---- */

static void iface_open(struct vm_area_struct *vma)
{
	get_page(vma->vm_private_data);
}

static void iface_close(struct vm_area_struct *vma)
{
	put_page(vma->vm_private_data);
}

static vm_fault_t iface_fault(struct vm_fault *vmf)
{
	vmf->page = vmf->vma->vm_private_data;
	get_page(vmf->page);
	return 0;
}

static const struct vm_operations_struct iface_vm_ops = {
	.open = iface_open,
	.close = iface_close,
	.fault = iface_fault,
};

/**
 * exmap_iface_mmap - mmap() of the page of an interface
 *
 * Return: 0; -ENXIO if there is no such interface (none is before SETUP);
 * -EINVAL unless it is one page, shared; -EPERM.
 */
int exmap_iface_mmap(struct exmap_area *area, struct vm_area_struct *vma,
		     unsigned long index)
{
	struct exmap_pool *pool;

	if (READ_ONCE(area->mm) && area->mm != current->mm)
		return -EPERM;
	/* Pairs with create_pool(). */
	pool = smp_load_acquire(&area->pool);
	if (!pool || index >= pool->nr_ifaces)
		return -ENXIO;
	if (vma->vm_end - vma->vm_start != PAGE_SIZE ||
	    !(vma->vm_flags & VM_SHARED))
		return -EINVAL;

	exmap_vm_flags_set(vma, VM_DONTEXPAND | VM_DONTCOPY | VM_DONTDUMP);
	vma->vm_private_data = pool->ifaces[index].page;
	vma->vm_ops = &iface_vm_ops;
	get_page(vma->vm_private_data);
	return 0;
}
