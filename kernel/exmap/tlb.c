// SPDX-License-Identifier: GPL-2.0-only
/*
 * tlb.c - forgetting translations, and the only symbol that must be looked up
 *
 * Linux exports to modules no function that flushes a range, or one address
 * space, from the TLBs of the processors that use it. Two ways remain:
 *
 * "kernel" (the default) finds the kernel's own flush_tlb_mm_range() by asking
 *   kprobes for its address. It knows about PCIDs, page-table isolation, idle
 *   processors that need no interrupt, hypervisors that flush on one's behalf,
 *   and devices that share the page tables; and its flushes are counted where
 *   an administrator looks for them.
 * "ipi" needs exported symbols only: it raises the address space's generation,
 *   so that a processor that switches to it later flushes by itself, and
 *   interrupts all that use it now to flush everything, global entries of the
 *   kernel included. It wakes idle processors, and does not reach devices.
 *
 * Without the symbol the module refuses to load as "kernel", and says how to
 * go on without.
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/smp.h>
#include <asm/tlbflush.h>
#ifdef CONFIG_X86_KERNEL_IBT
#include <asm/ibt.h>
#endif

#include "internal.h"

static char *flush = "kernel";
module_param(flush, charp, 0444);
MODULE_PARM_DESC(flush, "how to flush TLBs: kernel (flush_tlb_mm_range) or ipi");

static void (*flush_range)(struct mm_struct *mm, unsigned long start,
			   unsigned long end, unsigned int stride_shift,
			   bool freed_tables);

static unsigned long lookup(const char *name)
{
	struct kprobe probe = { .symbol_name = name };
	unsigned long addr;

	if (register_kprobe(&probe))
		return 0;
	addr = (unsigned long)probe.addr;
	unregister_kprobe(&probe);
#ifdef CONFIG_X86_KERNEL_IBT
	/* The probe sits behind the ENDBR that an indirect call must meet. */
	if (addr && is_endbr(*(u32 *)(addr - 4)))
		addr -= 4;
#endif
	return addr;
}

int exmap_tlb_init(void)
{
	if (!strcmp(flush, "ipi"))
		return 0;
	if (strcmp(flush, "kernel")) {
		pr_err("exmap: flush=%s: must be kernel or ipi\n", flush);
		return -EINVAL;
	}
	flush_range = (void *)lookup("flush_tlb_mm_range");
	if (!flush_range) {
		pr_err("exmap: no flush_tlb_mm_range in this kernel (or no kprobes); flush=ipi does without\n");
		return -ENOENT;
	}
	return 0;
}

#ifndef EXMAP_TEST_NO_FLUSH
static void flush_this_cpu(void *unused)
{
	__flush_tlb_all();
}
#endif

/*
 * When this returns, no processor translates an address in [lo, hi) of @mm by
 * an entry that was cleared before the call.
 */
void exmap_tlb_flush(struct mm_struct *mm, unsigned long lo, unsigned long hi)
{
#ifndef EXMAP_TEST_NO_FLUSH
	if (flush_range) {
		flush_range(mm, lo, hi, PAGE_SHIFT, false);
		return;
	}
	/* A full barrier: orders the cleared entries before the mask is read. */
	atomic64_inc_return(&mm->context.tlb_gen);
	on_each_cpu_cond_mask(NULL, flush_this_cpu, NULL, true, mm_cpumask(mm));
#endif
}
