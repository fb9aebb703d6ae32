// SPDX-License-Identifier: GPL-2.0-only
/*
 * pool.c - the physical pages of an area, and how they find their way
 *
 * Each interface has a free list of its own, so that threads that use one each
 * do not meet. An interface whose list is empty steals: from its last victim,
 * then from the better of two others at random, then from any. After that it
 * looks at the parked pages, whose pins may have gone, and last it searches
 * the whole pool for pages that the kernel has unmapped without telling
 * (MADV_DONTNEED, munmap): so every page can be reached from every interface.
 */
#include <linux/mm.h>
#include <linux/random.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "internal.h"

/* Without __GFP_RETRY_MAYFAIL a pool too large would call the OOM killer. */
#define EXMAP_GFP \
	(GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN | __GFP_RETRY_MAYFAIL)

static struct page *page_create(void)
{
	struct page *page = alloc_page(EXMAP_GFP);

	if (page)
		set_page_private(page, EXMAP_HELD);
	return page;
}

static int fill(struct exmap_pool *pool, unsigned long nr_pages)
{
	unsigned long i;

	for (i = 0; i < nr_pages; i++) {
		u32 owner = mul_u64_u64_div_u64(i, pool->nr_ifaces, nr_pages);
		struct exmap_iface *iface = &pool->ifaces[owner];
		struct page *page = page_create();

		if (!page)
			return -ENOMEM;
		pool->pages[pool->nr_pages++] = page;
		list_add(&page->lru, &iface->free);
		iface->nr_free++;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return 0;
}

/**
 * exmap_pool_create - allocate the pages and the interfaces of an area
 *
 * All memory is zeroed. Return: the pool, or an error pointer.
 */
struct exmap_pool *exmap_pool_create(unsigned long nr_pages, u32 nr_ifaces)
{
	struct exmap_pool *pool = kzalloc(sizeof(*pool), GFP_KERNEL_ACCOUNT);
	int err = -ENOMEM;
	u32 i;

	if (!pool)
		return ERR_PTR(-ENOMEM);
	spin_lock_init(&pool->parked_lock);
	INIT_LIST_HEAD(&pool->parked);

	pool->ifaces = kvcalloc(nr_ifaces, sizeof(*pool->ifaces),
				GFP_KERNEL_ACCOUNT);
	/* Quietly: how much it asks for is the program's choice. */
	pool->pages = kvcalloc(nr_pages, sizeof(*pool->pages),
			       GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!pool->ifaces || !pool->pages)
		goto fail;

	for (i = 0; i < nr_ifaces; i++) {
		struct exmap_iface *iface = &pool->ifaces[i];

		spin_lock_init(&iface->lock);
		INIT_LIST_HEAD(&iface->free);
		iface->last_victim = (i + 1) % nr_ifaces;
		iface->random = get_random_u32() | 1;
		iface->page = alloc_page(EXMAP_GFP);
		pool->nr_ifaces++;
		if (!iface->page)
			goto fail;
	}
	err = fill(pool, nr_pages);
	if (err)
		goto fail;
	return pool;
fail:
	exmap_pool_destroy(pool);
	return ERR_PTR(err);
}

/*
 * No call runs. A page that is still pinned, or mapped by an area that is about
 * to be unmapped, is freed with its last reference.
 */
void exmap_pool_destroy(struct exmap_pool *pool)
{
	unsigned long i;

	for (i = 0; i < pool->nr_pages; i++) {
		set_page_private(pool->pages[i], 0);
		put_page(pool->pages[i]);
		cond_resched();
	}
	for (i = 0; i < pool->nr_ifaces; i++) {
		if (pool->ifaces[i].page)
			put_page(pool->ifaces[i].page);
	}
	if (pool->backing)
		fput(pool->backing);
	kvfree(pool->pages);
	kvfree(pool->ifaces);
	kfree(pool);
}

/* Moves up to @want pages from the front of @from's list to @to. */
static unsigned long take_from(struct exmap_iface *from, struct list_head *to,
			       unsigned long want)
{
	struct list_head *last;
	unsigned long nr = 0;

	if (!READ_ONCE(from->nr_free))
		return 0;
	spin_lock(&from->lock);
	if (want >= from->nr_free) {
		nr = from->nr_free;
		list_splice_init(&from->free, to);
	} else {
		LIST_HEAD(cut);

		for (last = &from->free; nr < want; nr++)
			last = last->next;
		list_cut_position(&cut, &from->free, last);
		list_splice(&cut, to);
	}
	WRITE_ONCE(from->nr_free, from->nr_free - nr);
	spin_unlock(&from->lock);
	return nr;
}

/* Puts @nr pages at the front of the interface's list; empties @pages. */
void exmap_pool_give(struct exmap_iface *iface, struct list_head *pages,
		     unsigned long nr)
{
	if (!nr)
		return;
	spin_lock(&iface->lock);
	list_splice_init(pages, &iface->free);
	WRITE_ONCE(iface->nr_free, iface->nr_free + nr);
	spin_unlock(&iface->lock);
}

/*
 * Takes from @victim what is wanted, and up to half of its list beyond that,
 * which goes to the interface: the next call need not steal. Adds all of it to
 * @counter. Return: pages added to @to.
 */
static unsigned long steal_from(struct exmap_iface *iface,
				struct exmap_iface *victim,
				struct list_head *to, unsigned long want,
				atomic64_t *counter)
{
	unsigned long half = READ_ONCE(victim->nr_free) / 2;
	unsigned long nr, more = 0;
	LIST_HEAD(extra);

	if (victim == iface)
		return 0;
	nr = take_from(victim, to, want);
	if (nr == want && half > want) {
		more = min(half - want, (unsigned long)EXMAP_GRAB);
		more = take_from(victim, &extra, more);
		exmap_pool_give(iface, &extra, more);
	}
	atomic64_add(nr + more, counter);
	return nr;
}

/* Marsaglia's xorshift; threads that share an interface may share a value. */
static u32 random_iface(struct exmap_pool *pool, struct exmap_iface *iface)
{
	u32 x = READ_ONCE(iface->random);

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	WRITE_ONCE(iface->random, x);
	return ((u64)x * pool->nr_ifaces) >> 32;
}

static unsigned long steal(struct exmap_pool *pool, struct exmap_iface *iface,
			   struct list_head *to, unsigned long want)
{
	u32 victim = READ_ONCE(iface->last_victim);
	u32 other, i, self = iface - pool->ifaces;
	unsigned long nr;

	nr = steal_from(iface, &pool->ifaces[victim], to, want,
			&iface->stolen_last);
	if (nr)
		return nr;

	victim = random_iface(pool, iface);
	other = random_iface(pool, iface);
	if (READ_ONCE(pool->ifaces[other].nr_free) >
	    READ_ONCE(pool->ifaces[victim].nr_free))
		victim = other;
	nr = steal_from(iface, &pool->ifaces[victim], to, want,
			&iface->stolen_random);
	for (i = 1; !nr && i < pool->nr_ifaces; i++) {
		victim = (self + i) % pool->nr_ifaces;
		nr = steal_from(iface, &pool->ifaces[victim], to, want,
				&iface->stolen_any);
	}
	if (nr)
		WRITE_ONCE(iface->last_victim, victim);
	return nr;
}

void exmap_pool_park(struct exmap_pool *pool, struct page *page)
{
	spin_lock(&pool->parked_lock);
	list_add_tail(&page->lru, &pool->parked);
	WRITE_ONCE(pool->nr_parked, pool->nr_parked + 1);
	spin_unlock(&pool->parked_lock);
}

/*
 * Looks at the first @nr parked pages. Those that only the pool holds go to
 * @ready, the others to the end of the list. Return: pages added to @ready.
 */
static unsigned long unpark_some(struct exmap_pool *pool,
				 struct list_head *ready, unsigned long nr)
{
	unsigned long found = 0;
	struct page *page;

	for (; nr && !list_empty(&pool->parked); nr--) {
		page = list_first_entry(&pool->parked, struct page, lru);
		if (page_ref_count(page) == 1) {
			list_move(&page->lru, ready);
			found++;
		} else {
			list_move_tail(&page->lru, &pool->parked);
		}
	}
	WRITE_ONCE(pool->nr_parked, pool->nr_parked - found);
	return found;
}

/* Gives to @iface the parked pages that only the pool holds by now. */
static unsigned long unpark(struct exmap_pool *pool, struct exmap_iface *iface)
{
	unsigned long left = READ_ONCE(pool->nr_parked), nr = 0, some;
	LIST_HEAD(ready);

	/* Each that was there, some at a time: they may be very many. */
	while (left) {
		some = min_t(unsigned long, left, EXMAP_UNPARK);
		left -= some;
		spin_lock(&pool->parked_lock);
		nr += unpark_some(pool, &ready, some);
		spin_unlock(&pool->parked_lock);
		cond_resched();
	}
	exmap_pool_give(iface, &ready, nr);
	return nr;
}

/*
 * Whether @page lost its entry to the kernel rather than to FREE; if so it is
 * the caller's. The kernel drops the map count first, then flushes, and the
 * entry's reference last: so as with FREE the pool's reference is the only one
 * when all is over.
 */
static bool claim(struct page *page)
{
	/* Pairs with count_mapping() and uncount_mapping() in pages.c. */
	unsigned long word = smp_load_acquire(&page->private);

	if ((word & EXMAP_STATE) != EXMAP_MAPPED ||
	    atomic_read(&page->_mapcount) != -1)
		return false;
	/* The same generation still: what was read belongs to its end. */
	return cmpxchg(&page->private, word,
		       (word & ~EXMAP_STATE) | EXMAP_HELD) == word;
}

/**
 * exmap_pool_recover - find the pages that the kernel has unmapped
 *
 * Looks at every page of the pool; parks those that something still holds.
 * Return: pages given to @iface.
 */
unsigned long exmap_pool_recover(struct exmap_pool *pool,
				 struct exmap_iface *iface)
{
	unsigned long i, nr = 0;
	LIST_HEAD(found);

	for (i = 0; i < pool->nr_pages; i++) {
		struct page *page = pool->pages[i];

		if (claim(page)) {
			atomic64_inc(&pool->recovered);
			if (page_ref_count(page) == 1) {
				list_add(&page->lru, &found);
				nr++;
			} else {
				exmap_pool_park(pool, page);
			}
		}
		if (i % 4096 == 4095)
			cond_resched();
	}
	exmap_pool_give(iface, &found, nr);
	return nr;
}

/*
 * The same when the pool seems empty, but only if the kernel has unmapped
 * something of the area since the last time. What it unmaps during the search
 * it counts afterwards, which makes the next search due.
 */
static unsigned long recover_when_due(struct exmap_call *call)
{
	long zaps = atomic_long_read_acquire(&call->area->zaps);
	unsigned long nr;

	if (READ_ONCE(call->pool->searched) == zaps)
		return 0;
	nr = exmap_pool_recover(call->pool, call->iface);
	WRITE_ONCE(call->pool->searched, zaps);
	return nr;
}

/**
 * exmap_pool_take - bring pages into the hand of a call
 *
 * Takes up to @want; fewer only where no more are found at once. It may take
 * long, and sleep: call it without a page-table lock.
 *
 * Return: pages added; 0 when every page of the pool is in use.
 */
unsigned long exmap_pool_take(struct exmap_call *call, unsigned long want)
{
	struct exmap_pool *pool = call->pool;
	struct exmap_iface *iface = call->iface;
	unsigned long nr;

	nr = take_from(iface, &call->hand, want);
	if (!nr)
		nr = steal(pool, iface, &call->hand, want);
	if (!nr && (unpark(pool, iface) || recover_when_due(call)))
		nr = take_from(iface, &call->hand, want);
	call->nr_hand += nr;
	return nr;
}

unsigned long exmap_pool_nr_free(struct exmap_pool *pool)
{
	unsigned long nr = 0;
	u32 i;

	for (i = 0; i < pool->nr_ifaces; i++)
		nr += READ_ONCE(pool->ifaces[i].nr_free);
	return nr;
}
