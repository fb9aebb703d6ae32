// SPDX-License-Identifier: GPL-2.0-only
/*
 * pages.c - putting pages into page-table entries, and taking them out
 *
 * Every entry is read and written under the lock of its page table, here as in
 * the rest of the kernel, so that nothing here depends on what else writes
 * entries of the area (madvise, userfaultfd, clear_refs).
 *
 * The functions run under mmap_lock, held for reading, with call->vma found
 * under it, or in a page fault: either keeps all levels above the last in
 * being. A page table itself may be taken away while it is empty, by
 * MADV_DONTNEED from Linux 6.14 on; lock_table() minds that.
 */
#include <linux/mm.h>
#include <linux/pgtable.h>

#include "compat.h"
#include "internal.h"

/* Leaves @page as vm_insert_page() would, but for the rss: see call->rss. */
static void count_mapping(struct page *page)
{
	unsigned long word = READ_ONCE(page->private);

	get_page(page);
	atomic_inc(&page->_mapcount);
	exmap_count_file_mapped(page, 1);
	word = (word & ~EXMAP_STATE) + EXMAP_GENERATION;
	/* If claim() sees this generation as mapped, it sees its counts. */
	smp_store_release(&page->private, word | EXMAP_MAPPED);
}

/* Undoes the above except for the reference, which outlives the flush. */
static void uncount_mapping(struct page *page)
{
	unsigned long word = READ_ONCE(page->private);

	WRITE_ONCE(page->private, (word & ~EXMAP_STATE) | EXMAP_HELD);
	/* Out of reach of claim() before its map count goes. */
	smp_mb__before_atomic();
	atomic_dec(&page->_mapcount);
	exmap_count_file_mapped(page, -1);
}

/* A page of the pool is there: not nothing, a blank page, or a marker. */
static bool is_mapped(pte_t pte)
{
	return pte_present(pte) && !pte_special(pte);
}

/*
 * Young and dirty from the start, so that no processor need write that back.
 * Dirty comes last: of an entry that is not writable yet, the kernel notes it
 * in another bit, which the hardware does not know.
 */
static pte_t pool_pte(struct page *page, pgprot_t prot)
{
	return pte_mkdirty(exmap_pte_mkwrite(pte_mkyoung(mk_pte(page, prot))));
}

/**
 * exmap_pages_init - check what the module takes for granted about entries
 *
 * Return: 0, or -EOPNOTSUPP.
 */
int exmap_pages_init(void)
{
	const pteval_t wanted = _PAGE_PRESENT | _PAGE_USER | _PAGE_RW |
				_PAGE_ACCESSED | _PAGE_DIRTY;
	pte_t pool = pool_pte(ZERO_PAGE(0), PAGE_SHARED);
	pte_t read_only = pool_pte(ZERO_PAGE(0), PAGE_READONLY);

	if ((pte_flags(pool) & wanted) == wanted &&
	    (pte_flags(read_only) & wanted) == wanted && !pte_special(pool))
		return 0;
	pr_err("exmap: this kernel makes entries with the bits %llx, of which %llx are needed\n",
	       (u64)pte_flags(pool), (u64)wanted);
	return -EOPNOTSUPP;
}

/*
 * The entry that may lead to the page table for @addr, or NULL. @next is the
 * first address, at most @end, that is not below it.
 */
static pmd_t *find_pmd(struct mm_struct *mm, unsigned long addr,
		       unsigned long end, unsigned long *next)
{
	pgd_t *pgd = pgd_offset(mm, addr);
	p4d_t *p4d;
	pud_t *pud;

	/* Each level ends within the one above; a folded one ends nowhere. */
	*next = pgd_addr_end(addr, end);
	if (pgd_none(*pgd) || pgd_bad(*pgd))
		return NULL;
	p4d = p4d_offset(pgd, addr);
	*next = p4d_addr_end(addr, *next);
	if (p4d_none(*p4d) || p4d_bad(*p4d))
		return NULL;
	pud = pud_offset(p4d, addr);
	*next = pud_addr_end(addr, *next);
	if (pud_none(*pud) || pud_bad(*pud))
		return NULL;
	*next = pmd_addr_end(addr, *next);
	return pmd_offset(pud, addr);
}

/*
 * What pte_offset_map_lock() does, which is not exported: locks the page table
 * below @pmd, unless there is none (NULL), and makes sure that it is still
 * there. RCU keeps one that is being taken away until its lock is let go.
 */
static pte_t *lock_table(struct mm_struct *mm, pmd_t *pmd, unsigned long addr,
			 spinlock_t **lock)
{
	pmd_t seen;

	for (;;) {
		rcu_read_lock();
		seen = READ_ONCE(*pmd);
		if (pmd_none(seen) || pmd_bad(seen)) {
			rcu_read_unlock();
			return NULL;
		}
		*lock = pte_lockptr(mm, &seen);
		spin_lock(*lock);
		if (likely(pmd_same(seen, READ_ONCE(*pmd))))
			return pte_offset_kernel(&seen, addr);
		spin_unlock(*lock);
		rcu_read_unlock();
	}
}

static void unlock_table(spinlock_t *lock)
{
	spin_unlock(lock);
	rcu_read_unlock();
}

/*
 * The same, and @pmd's page table is made if there is none. Return: NULL for
 * want of memory.
 */
static pte_t *make_table(struct mm_struct *mm, unsigned long addr,
			 unsigned long end, unsigned long *next,
			 spinlock_t **lock)
{
	for (;;) {
		pmd_t *pmd = find_pmd(mm, addr, end, next);
		pte_t *ptep = pmd ? lock_table(mm, pmd, addr, lock) : NULL;

		if (likely(ptep))
			return ptep;
		/* Without a function it only makes what is missing. */
		if (apply_to_page_range(mm, addr, PAGE_SIZE, NULL, NULL))
			return NULL;
	}
}

/* An address whose entry no longer says what it said to TLBs and mirrors. */
static void note_removed(struct exmap_call *call, unsigned long addr)
{
	call->lo = min(call->lo, addr);
	call->hi = max(call->hi, addr + PAGE_SIZE);
}

/* Maps a page of the hand unless one is there. */
static int map_one(struct exmap_call *call, pte_t *ptep, unsigned long addr)
{
	pte_t old = ptep_get(ptep);
	struct page *page;

	if (is_mapped(old)) {
		call->met = true;
		if (call->stop_at_mapped)
			return -EEXIST;
		call->visited++;
		return 0;
	}
	if (!call->nr_hand)
		return -EAGAIN;
	if (pte_present(old)) {
		ptep_get_and_clear(call->mm, addr, ptep);
		note_removed(call, addr);
	} else if (unlikely(!pte_none(old))) {
		/* A marker of userfaultfd, which wants to hear of stores. */
		pte_clear(call->mm, addr, ptep);
	}
	page = list_first_entry(&call->hand, struct page, lru);
	list_del(&page->lru);
	call->nr_hand--;
	count_mapping(page);
	set_pte_at(call->mm, addr, ptep,
		   pool_pte(page, call->vma->vm_page_prot));
	call->mapped++;
	call->visited++;
	return 0;
}

/* Whether mmap_lock has been held for so much work that others may want it. */
bool exmap_should_pause(struct exmap_call *call)
{
	if (call->nr_gather >= EXMAP_GATHER_MAX)
		return true;
	return call->steps >= EXMAP_STEPS &&
	       (need_resched() || mmap_lock_is_contended(call->mm) ||
		fatal_signal_pending(current));
}

/**
 * exmap_map_range - map pages of the hand where nothing is mapped
 * @call: its hand may be empty
 * @addr: first address, within the area
 * @end: last address + 1, ditto
 *
 * Adds to call->mapped the pages mapped, to call->visited those and the ones
 * found mapped. With call->stop_at_mapped the first mapped page ends it.
 *
 * Return: 0 at the end, or earlier when it is time to pause; -EAGAIN at a page
 * for which there is none in the hand; -EEXIST as said; -ENOMEM for want of a
 * page table.
 */
int exmap_map_range(struct exmap_call *call, unsigned long addr,
		    unsigned long end)
{
	unsigned long before = call->mapped, next;
	int err = 0;

	while (!err && addr != end) {
		spinlock_t *lock;	/* of the page table */
		pte_t *ptep = make_table(call->mm, addr, end, &next, &lock);

		if (!ptep) {
			err = -ENOMEM;
			break;
		}
		call->steps += (next - addr) >> PAGE_SHIFT;
		for (; !err && addr != next; ptep++, addr += PAGE_SIZE)
			err = map_one(call, ptep, addr);
		unlock_table(lock);
		if (exmap_should_pause(call))
			break;
	}
	call->rss += call->mapped - before;
	return err;
}

static void unmap_one(struct exmap_call *call, pte_t *ptep, unsigned long addr)
{
	struct page *page;

	if (!is_mapped(ptep_get(ptep)))
		return;
	page = pte_page(ptep_get_and_clear(call->mm, addr, ptep));
	uncount_mapping(page);
	list_add(&page->lru, &call->gather);
	call->nr_gather++;
	call->rss--;
	note_removed(call, addr);
}

/**
 * exmap_unmap_range - take out of the area what is mapped in a range
 *
 * The pages are in call->gather afterwards, still visible through TLBs: they
 * must not be handed out before exmap_removal_end().
 *
 * Return: @end, or an earlier address when it is time to pause.
 */
unsigned long exmap_unmap_range(struct exmap_call *call, unsigned long addr,
				unsigned long end)
{
	unsigned long next;

	for (; addr != end; addr = next) {
		pmd_t *pmd = find_pmd(call->mm, addr, end, &next);
		unsigned long at = addr;
		spinlock_t *lock;	/* of the page table */
		pte_t *ptep;

		if (exmap_should_pause(call))
			break;
		ptep = pmd ? lock_table(call->mm, pmd, addr, &lock) : NULL;
		if (!ptep) {
			call->steps++;
			continue;
		}
		call->steps += (next - addr) >> PAGE_SHIFT;
		for (; at != next; ptep++, at += PAGE_SIZE)
			unmap_one(call, ptep, at);
		unlock_table(lock);
	}
	return addr;
}

/*
 * After the flush: the pages go to the interface, or are parked while something
 * else holds them.
 */
void exmap_gather_release(struct exmap_call *call)
{
	struct page *page, *next;
	unsigned long nr = call->nr_gather;

	if (!nr)
		return;
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
}

/**
 * exmap_map_blank - let loads from an address see zeroes, unless it is mapped
 *
 * In a page fault. The entry is special: the kernel keeps no count of it.
 *
 * Return: 0, or -ENOMEM for want of a page table.
 */
int exmap_map_blank(struct vm_area_struct *vma, unsigned long addr)
{
	pte_t blank = mk_pte(ZERO_PAGE(addr), vma->vm_page_prot);
	unsigned long next;
	spinlock_t *lock;	/* of the page table */
	pte_t *ptep = make_table(vma->vm_mm, addr, addr + PAGE_SIZE, &next,
				 &lock);

	if (!ptep)
		return -ENOMEM;
	/* If an ALLOC was faster, the load finds a page of the pool. */
	if (!pte_present(ptep_get(ptep)))
		set_pte_at(vma->vm_mm, addr, ptep,
			   pte_mkspecial(pte_mkyoung(blank)));
	unlock_table(lock);
	return 0;
}
