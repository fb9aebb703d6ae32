/* SPDX-License-Identifier: GPL-2.0-only */
/* compat.h - what differs between the kernels that the module builds for */
#ifndef EXMAP_COMPAT_H
#define EXMAP_COMPAT_H

#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmu_notifier.h>
#include <linux/percpu_counter.h>
#include <linux/uio.h>
#include <linux/version.h>
#include <linux/vmstat.h>
#include <linux/io_uring.h>
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
#include <linux/io_uring/cmd.h>
#endif

#if !defined(CONFIG_X86_64)
#error "exmap writes page-table entries of x86-64"
#endif
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0)
#error "exmap needs Linux 6.1 or later"
#endif
#ifndef CONFIG_MMU_NOTIFIER
#error "exmap needs CONFIG_MMU_NOTIFIER"
#endif

static inline void exmap_vm_flags_set(struct vm_area_struct *vma,
				      unsigned long flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
}

static inline void exmap_vm_flags_clear(struct vm_area_struct *vma,
					unsigned long flags)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_clear(vma, flags);
#else
	vma->vm_flags &= ~flags;
#endif
}

/* Newer kernels hide it from modules; for older ones this proves the type. */
void flush_tlb_mm_range(struct mm_struct *mm, unsigned long start,
			unsigned long end, unsigned int stride_shift,
			bool freed_tables);

/* add_mm_counter() is inline, but calls a tracing hook that is not exported. */
static inline void exmap_rss_add(struct mm_struct *mm, long pages)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	percpu_counter_add(&mm->rss_stat[MM_FILEPAGES], pages);
#else
	atomic_long_add(pages, &mm->rss_stat.count[MM_FILEPAGES]);
#endif
}

static inline pte_t exmap_pte_mkwrite(pte_t pte)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	return pte_mkwrite_novma(pte);
#else
	return pte_mkwrite(pte);
#endif
}

/* The current segment of an iterator over user memory. */
static inline void exmap_iter_segment(const struct iov_iter *iter,
				      unsigned long *addr, size_t *len)
{
	if (iter_is_ubuf(iter)) {
		*addr = (unsigned long)iter->ubuf + iter->iov_offset;
		*len = iov_iter_count(iter);
		return;
	}
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	*addr = (unsigned long)iter_iov_addr(iter);
	*len = min_t(size_t, iter_iov_len(iter), iov_iter_count(iter));
#else
	*addr = (unsigned long)iov_iter_iovec(iter).iov_base;
	*len = iov_iter_iovec(iter).iov_len;
#endif
}

/* Flags of a command that come from the program; the rest is io_uring's own. */
#define EXMAP_URING_FLAGS 0x00ffffffU

static inline const void *exmap_uring_payload(struct io_uring_cmd *cmd)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
	return cmd->sqe->cmd;
#else
	return cmd->cmd;
#endif
}

static inline void exmap_uring_done(struct io_uring_cmd *cmd, long ret,
				    unsigned int issue_flags)
{
#ifdef EXMAP_HAVE_URING_CMD_DONE32	/* then the plain one has one result */
	io_uring_cmd_done(cmd, ret, issue_flags);
#else
	io_uring_cmd_done(cmd, ret, 0, issue_flags);
#endif
}

static inline void exmap_count_file_mapped(struct page *page, int nr)
{
#ifdef EXMAP_HAVE___LRUVEC_STAT_MOD_FOLIO
	__lruvec_stat_mod_folio(page_folio(page), NR_FILE_MAPPED, nr);
#else
	lruvec_stat_mod_folio(page_folio(page), NR_FILE_MAPPED, nr);
#endif
}

/* Calls what is, or stands for, __mmu_notifier_invalidate_range_end(). */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
#define EXMAP_NOTIFY_END(function, range) ((function)(range))
#else
#define EXMAP_NOTIFY_END(function, range) ((function)(range, false))
#endif

/*
 * MIGRATE is the event whose owner is always set, so that the notifier of the
 * subsystem that caused it can pass over it. All others must act on it.
 */
static inline void exmap_notifier_range_init(struct mmu_notifier_range *range,
					     struct vm_area_struct *vma,
					     unsigned long lo, unsigned long hi,
					     void *owner)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	mmu_notifier_range_init_owner(range, MMU_NOTIFY_MIGRATE, 0,
				      vma->vm_mm, lo, hi, owner);
#else
	mmu_notifier_range_init_owner(range, MMU_NOTIFY_MIGRATE, 0, vma,
				      vma->vm_mm, lo, hi, owner);
#endif
}

#endif /* EXMAP_COMPAT_H */
