// SPDX-License-Identifier: GPL-2.0-only
/*
 * tlb.c - telling TLBs and secondary MMUs that entries are gone
 *
 * Linux exports to modules no function that flushes a range, or one address
 * space, from the TLBs of the processors that use it, and none that starts an
 * invalidation of mirrors of page tables (KVM, devices). Both are looked up by
 * way of kprobes. flush_tlb_mm_range() knows about PCIDs,
 * page-table isolation, idle processors that need no interrupt, hypervisors
 * and instructions that flush on one's behalf, and its flushes are counted
 * where an administrator looks for them: there is no second way that would be
 * as good, so without the symbols the module does not load.
 *
 * The protocol is that of mm/mmu_gather.c and mm/mapping_dirty_helpers.c. See
 * exmap.rst, "Removal".
 */
#include <linux/kprobes.h>
#include <linux/mm_inline.h>
#include <linux/mmu_notifier.h>
#include <linux/static_call.h>
#include <asm/tlbflush.h>

#include "compat.h"
#include "internal.h"

/*
 * Static calls, which become direct ones: with IBT the kernel seals functions
 * of its own that are never called by a pointer.
 */
DEFINE_STATIC_CALL_NULL(exmap_flush, flush_tlb_mm_range);
DEFINE_STATIC_CALL_NULL(exmap_notify_start,
			__mmu_notifier_invalidate_range_start);
DEFINE_STATIC_CALL_NULL(exmap_notify_end, __mmu_notifier_invalidate_range_end);

static void *lookup(const char *name)
{
	struct kprobe probe = { .symbol_name = name };
	int err = register_kprobe(&probe);

	if (err) {
		pr_err("exmap: %s cannot be found in this kernel (%d); are kprobes configured?\n",
		       name, err);
		return NULL;
	}
	unregister_kprobe(&probe);
	return probe.addr;
}

int exmap_tlb_init(void)
{
	void *flush = lookup("flush_tlb_mm_range");
	void *start = lookup("__mmu_notifier_invalidate_range_start");
	void *end = lookup("__mmu_notifier_invalidate_range_end");

	if (!flush || !start || !end)
		return -ENOENT;
	static_call_update(exmap_flush, flush);
	static_call_update(exmap_notify_start, start);
	static_call_update(exmap_notify_end, end);
	return 0;
}

/**
 * exmap_removal_begin - announce that entries in [lo, hi) may be removed
 *
 * Under mmap_lock, before the first page-table lock. From here until
 * exmap_removal_end() another call that finds such an entry empty, and ends
 * before the flush, flushes by itself, as tlb_finish_mmu() does: the entry may
 * still be in a TLB.
 */
void exmap_removal_begin(struct exmap_call *call, unsigned long lo,
			 unsigned long hi)
{
	exmap_notifier_range_init(&call->range, call->vma, lo, hi, call->area);
	call->range.flags |= MMU_NOTIFIER_RANGE_BLOCKABLE;
	static_call(exmap_notify_start)(&call->range);
	inc_tlb_flush_pending(call->mm);
	call->lo = ULONG_MAX;
	call->hi = 0;
}

/**
 * exmap_removal_end - make all forget what was removed
 *
 * Under the same hold of mmap_lock. When it returns no processor translates an
 * address of the range by an entry that this call removed, or found removed.
 */
void exmap_removal_end(struct exmap_call *call)
{
	/*
	 * Another task removes, too. It may not have flushed the entries that
	 * this call found empty, or the blank pages that it found replaced. An
	 * ALLOC that only filled what was empty depends on neither.
	 */
	if ((call->removes || call->met) && mm_tlb_flush_nested(call->mm)) {
		call->lo = call->range.start;
		call->hi = call->range.end;
	}
	if (call->hi) {
#ifndef EXMAP_TEST_NO_FLUSH
		static_call(exmap_flush)(call->mm, call->lo, call->hi,
					 PAGE_SHIFT, false);
#endif
		atomic64_inc(call->removes ? &call->iface->flushes :
					     &call->iface->flushes_blank);
	}
	EXMAP_NOTIFY_END(static_call(exmap_notify_end), &call->range);
	dec_tlb_flush_pending(call->mm);
}
