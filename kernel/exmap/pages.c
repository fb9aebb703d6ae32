// SPDX-License-Identifier: GPL-2.0-only
/*
 * pages.c - putting pages into page-table entries, and taking them out
 *
 * Every function here runs under mmap_lock, held for reading, with call->vma
 * found under it: that keeps the page tables of the area in being, and keeps
 * out all that rewrites present entries without regard for others (mprotect,
 * mremap, soft-dirty clearing).
 *
 * An entry goes from none to present only by compare-and-swap, here and
 * nowhere else. A present entry changes only under its page-table lock, because
 * the kernel, too, removes entries, and rewrites a present one between looking
 * and storing under that lock: so FREE takes it, and so does ALLOC where a
 * fault has put the blank page.
 */
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/vmstat.h>
#include <linux/memcontrol.h>

#include "compat.h"
#include "internal.h"

/* Leaves @page as vm_insert_page() would, but for the rss: see call->rss. */
static void count_mapping(struct page *page)
{
	unsigned long word = READ_ONCE(page->private);

	get_page(page);
	atomic_inc(&page->_mapcount);
	__lruvec_stat_mod_folio(page_folio(page), NR_FILE_MAPPED, 1);
	/* Whoever sees this generation as mapped sees its counts, too. */
	word = (word & ~EXMAP_STATE) + EXMAP_GENERATION;
	smp_store_release(&page->private, word | EXMAP_MAPPED);
}

/* Undoes the above except for the reference, which outlives the flush. */
static void uncount_mapping(struct page *page)
{
	unsigned long word = READ_ONCE(page->private);

	/* Not for exmap_pool_recover() any more, before its map count goes. */
	WRITE_ONCE(page->private, (word & ~EXMAP_STATE) | EXMAP_HELD);
	smp_mb__before_atomic();
	atomic_dec(&page->_mapcount);
	__lruvec_stat_mod_folio(page_folio(page), NR_FILE_MAPPED, -1);
}

/* No page of the pool: nothing, or a blank page, which is always special. */
static bool is_vacant(pte_t pte)
{
	return pte_none(pte) || pte_special(pte);
}

/*
 * Maps a page of the hand by one compare-and-swap, unless the entry is taken:
 * -EEXIST; or the page-table lock is needed for it: -EAGAIN. Preemption is off,
 * for the statistics.
 */
static int map_one(struct exmap_call *call, pte_t *ptep, unsigned long addr,
		   bool locked)
{
	pte_t old = READ_ONCE(*ptep);
	struct page *page;
	pte_t new, seen;

	if (unlikely(pte_special(old)) && !locked)
		return -EAGAIN;
	call->visited++;
	if (!is_vacant(old))
		return -EEXIST;

	page = list_first_entry(&call->hand, struct page, lru);
	list_del(&page->lru);
	count_mapping(page);

	/* Young and dirty from the start: no processor need write them back. */
	new = mk_pte(page, call->vma->vm_page_prot);
	new = exmap_pte_mkwrite(pte_mkdirty(pte_mkyoung(new)));
	for (;;) {
		seen.pte = cmpxchg64((u64 *)&ptep->pte, old.pte, new.pte);
		if (likely(seen.pte == old.pte))
			break;
		if (is_vacant(seen) && locked) {
			/* A load came in between. */
			old = seen;
			continue;
		}
		uncount_mapping(page);
		put_page(page);
		list_add(&page->lru, &call->hand);
		if (!is_vacant(seen))
			return -EEXIST;
		call->visited--;
		return -EAGAIN;
	}
	if (unlikely(!pte_none(old))) {
		call->blank_lo = min(call->blank_lo, addr);
		call->blank_hi = max(call->blank_hi, addr + PAGE_SIZE);
	}
	call->nr_hand--;
	call->mapped++;
	return 0;
}

/* What a mapped page means for the range. */
static int pass(struct exmap_call *call, int err)
{
	return err == -EEXIST && !call->stop_at_mapped ? 0 : err;
}

/* With the page-table lock held. */
static int map_pte(pte_t *ptep, unsigned long addr, void *data)
{
	struct exmap_call *call = data;

	return pass(call, map_one(call, ptep, addr, true));
}

/* The entry for @addr, or NULL where there is no page table yet. */
static pte_t *walk(struct mm_struct *mm, unsigned long addr)
{
	pgd_t *pgd = pgd_offset(mm, addr);
	p4d_t *p4d;
	pud_t *pud;
	pmd_t *pmd;

	if (pgd_none(*pgd) || pgd_bad(*pgd))
		return NULL;
	p4d = p4d_offset(pgd, addr);
	if (p4d_none(*p4d) || p4d_bad(*p4d))
		return NULL;
	pud = pud_offset(p4d, addr);
	if (pud_none(*pud) || pud_bad(*pud))
		return NULL;
	pmd = pmd_offset(pud, addr);
	if (pmd_none(*pmd) || pmd_bad(*pmd))
		return NULL;
	return pte_offset_kernel(pmd, addr);
}

/**
 * exmap_map_range - map pages of the hand where nothing is mapped
 * @call: holds at least @nr pages in its hand
 * @addr: first address, within the area
 * @nr: pages, at least 1
 *
 * Adds to call->mapped the pages mapped, to call->visited those and the ones
 * found mapped. With call->stop_at_mapped the first mapped page ends it.
 *
 * Return: 0, -EEXIST as said, -ENOMEM for want of a page table.
 */
int exmap_map_range(struct exmap_call *call, unsigned long addr,
		    unsigned long nr)
{
	unsigned long before = call->mapped;
	int err;

	if (nr == 1) {
		pte_t *ptep = walk(call->mm, addr);

		if (likely(ptep)) {
			preempt_disable();
			err = map_one(call, ptep, addr, false);
			preempt_enable();
			if (likely(err != -EAGAIN)) {
				err = pass(call, err);
				goto out;
			}
		}
	}
	err = apply_to_page_range(call->mm, addr, nr << PAGE_SHIFT, map_pte,
				  call);
out:
	call->rss += call->mapped - before;
	return err;
}

/* How many pages from @addr on are mapped without a gap; at most @nr. */
unsigned long exmap_count_mapped(struct exmap_call *call, unsigned long addr,
				 unsigned long nr)
{
	unsigned long n;

	for (n = 0; n < nr; n++, addr += PAGE_SIZE) {
		pte_t *ptep = walk(call->mm, addr);

		if (!ptep || is_vacant(READ_ONCE(*ptep)))
			break;
	}
	return n;
}

static int unmap_pte(pte_t *ptep, unsigned long addr, void *data)
{
	struct exmap_call *call = data;
	struct page *page;
	pte_t old;

	old = READ_ONCE(*ptep);
	if (!pte_present(old) || pte_special(old))
		return 0;
	old = ptep_get_and_clear(call->mm, addr, ptep);
	page = pte_page(old);
	uncount_mapping(page);
	list_add(&page->lru, &call->gather);
	call->nr_gather++;
	call->lo = min(call->lo, addr);
	call->hi = max(call->hi, addr + PAGE_SIZE);
	return 0;
}

/**
 * exmap_unmap_range - take out of the area what is mapped in a range
 *
 * The pages are in call->gather afterwards, still visible through TLBs: no one
 * may have them before exmap_gather_finish().
 *
 * Return: the number of pages that were mapped.
 */
unsigned long exmap_unmap_range(struct exmap_call *call, unsigned long addr,
				unsigned long nr)
{
	unsigned long before = call->nr_gather;

	apply_to_existing_page_range(call->mm, addr, nr << PAGE_SHIFT,
				     unmap_pte, call);
	call->rss -= call->nr_gather - before;
	return call->nr_gather - before;
}

/*
 * One flush for all that was gathered, then the pages go to the interface, or
 * are parked while something else holds them. mmap_lock need not be held: what
 * was mapped meanwhile at these addresses loses a translation, no more.
 */
void exmap_gather_finish(struct exmap_call *call)
{
	struct page *page, *next;
	unsigned long nr = call->nr_gather;

	if (!nr)
		return;
	exmap_tlb_flush(call->mm, call->lo, call->hi);
	atomic64_inc(&call->iface->flushes);
	atomic64_add(nr, &call->iface->released);

	list_for_each_entry_safe(page, next, &call->gather, lru) {
		cond_resched();
		/*
		 * A pin that began before the entry was cleared is counted by
		 * now; one that begins later finds the entry gone and drops
		 * the page again without a look at it.
		 */
		if (likely(page_ref_dec_return(page) == 1))
			continue;
		list_del(&page->lru);
		nr--;
		exmap_pool_park(call->pool, page);
	}
	exmap_pool_give(call->iface, &call->gather, nr);
	call->nr_gather = 0;
	call->lo = ULONG_MAX;
	call->hi = 0;
}

static int blank_pte(pte_t *ptep, unsigned long addr, void *data)
{
	pte_t *new = data;

	/* If somebody was faster, the load finds a page of the pool. */
	cmpxchg64((u64 *)&ptep->pte, 0, new->pte);
	return 0;
}

/**
 * exmap_map_blank - let loads from an address see zeroes, unless it is mapped
 *
 * The entry is special: the kernel keeps no count of the page, and no one can
 * take a reference to it by way of the area.
 *
 * Return: 0, or -ENOMEM for want of a page table.
 */
int exmap_map_blank(struct vm_area_struct *vma, unsigned long addr,
		    struct page *blank)
{
	pte_t new = pte_mkyoung(mk_pte(blank, vma->vm_page_prot));

	new = pte_mkspecial(pte_wrprotect(new));
	return apply_to_page_range(vma->vm_mm, addr, PAGE_SIZE, blank_pte, &new);
}

/* Makes all processors forget the blank pages that the call has replaced. */
void exmap_blank_finish(struct exmap_call *call)
{
	if (likely(!call->blank_hi))
		return;
	exmap_tlb_flush(call->mm, call->blank_lo, call->blank_hi);
	atomic64_inc(&call->iface->flushes_blank);
	call->blank_lo = ULONG_MAX;
	call->blank_hi = 0;
}
