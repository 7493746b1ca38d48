/* METEOR's word alignment: alignment.py in C, with the same interface and the same numbers.
 *
 * An Aligner knows words (hash of spelling and stem, synsets, number in the paraphrase table) and
 * sentences (words, and the runs of words that are nodes of the trie of phrases). For a pair of
 * sentences it lists all matches in a fixed order and picks some of them with a beam search.
 * Names are those of alignment.py, which says why things are as they are.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { EXACT, STEM, SYNONYM, PARAPHRASE };
enum { BEAM = 40, COUNTS = 23, FILTER_BITS = 4096, ASKED = 1 << 14 };
enum { LONGEST = 1 << 14, MOST_MATCHES = 1 << 20 }; /* as in alignment.py */

/* Growing arrays: `reserve` makes room for at least `wanted` items of `size` bytes. */

typedef struct {
    void *items;
    size_t room;
} Store;

static int reserve(Store *store, size_t wanted, size_t size)
{
    if (wanted <= store->room)
        return 0;
    size_t room = store->room < 16 ? 16 : store->room;
    while (room < wanted) {
        if (room > SIZE_MAX / 2)
            return -1;
        room *= 2;
    }
    if (room > (size_t)PY_SSIZE_T_MAX / size)
        return -1;
    void *items = realloc(store->items, room * size);
    if (items == NULL)
        return -1;
    store->items = items;
    store->room = room;
    return 0;
}

typedef struct {
    uint32_t key, stem;
    uint64_t signature; /* one bit for each synset: no common bit, no common synset */
    size_t synsets;     /* place of the first one */
    uint32_t synset_count;
    int32_t number;
    int function;
} Word;

typedef struct {
    uint32_t node;
    int32_t start, stop;
} Phrase;

typedef struct {
    uint32_t node;
    int32_t place;
} Place; /* of a phrase in its sentence; a sentence's are sorted by node, then place */

typedef struct {
    size_t words, phrases; /* places of the first ones */
    int32_t word_count, phrase_count, functions;
    uint64_t filter[FILTER_BITS / 64]; /* one bit for each phrase */
} Sentence;

typedef struct {
    int32_t module, start, stop, first, last;
    int32_t next; /* the next match with the same `first`, or -1 */
} Match;

typedef struct {
    int64_t gain, chunks, distance;
    int32_t end, chain;
} Path;

typedef struct {
    int32_t match, before;
} Link;

typedef struct {
    PyObject_HEAD
    Py_buffer node_words, child_starts, target_starts, targets;
    uint32_t nodes;
    Store words, synsets, sentences, sentence_words, phrases, places;
    size_t word_count, synset_count, sentence_count, sentence_word_count, phrase_count;
    uint64_t asked[ASKED]; /* pairs of words and whether they are synonyms, as last asked for */
    /* scratch of one pair */
    Store matches, heads, tails, used_times, covered_times, given, bits, links;
    size_t match_count, link_count;
} Aligner;

#define ITEMS(type, store) ((type *)(store).items)

static inline uint32_t filter_bit(uint32_t node)
{
    return (node * 2654435761u) >> 20; /* 12 bits */
}

/* Matching */

static int add_match(Aligner *self, int module, int32_t first, int32_t last, int32_t start,
                     int32_t stop)
{
    if (self->match_count >= MOST_MATCHES ||
        reserve(&self->matches, self->match_count + 1, sizeof(Match)) < 0)
        return -1;
    int32_t number = (int32_t)self->match_count++;
    int32_t *heads = self->heads.items, *tails = self->tails.items;
    Match *matches = self->matches.items;
    matches[number] = (Match){module, start, stop, first, last, -1};
    if (heads[first] < 0)
        heads[first] = number;
    else
        matches[tails[first]].next = number;
    tails[first] = number;
    int32_t *used_times = self->used_times.items, *covered_times = self->covered_times.items;
    for (int32_t i = start; i < stop; i++)
        used_times[i]++;
    for (int32_t j = first; j < last; j++)
        covered_times[j]++;
    return 0;
}

static int share_synset(Aligner *self, int32_t one_number, int32_t two_number)
{
    const Word *one = ITEMS(Word, self->words) + one_number;
    const Word *two = ITEMS(Word, self->words) + two_number;
    if (!(one->signature & two->signature))
        return 0;
    uint64_t pair = ((uint64_t)one_number << 31 | (uint64_t)two_number) + 1;
    uint64_t *asked = self->asked + (pair * 0x9e3779b97f4a7c15u >> 50);
    if (*asked >> 1 == pair)
        return *asked & 1;
    const uint32_t *a = ITEMS(uint32_t, self->synsets) + one->synsets;
    const uint32_t *b = ITEMS(uint32_t, self->synsets) + two->synsets;
    const uint32_t *a_end = a + one->synset_count, *b_end = b + two->synset_count;
    int found = 0;
    while (!found && a < a_end && b < b_end) {
        found = *a == *b;
        if (*a < *b)
            a++;
        else
            b++;
    }
    *asked = pair << 1 | (uint64_t)found;
    return found;
}

static int match_words(Aligner *self, const Sentence *one, const Sentence *two, int module)
{
    const Word *words = self->words.items;
    const int32_t *ones = ITEMS(int32_t, self->sentence_words) + one->words;
    const int32_t *twos = ITEMS(int32_t, self->sentence_words) + two->words;
    for (int32_t j = 0; j < two->word_count; j++) {
        const Word *b = words + twos[j];
        for (int32_t i = 0; i < one->word_count; i++) {
            const Word *a = words + ones[i];
            int same = a->key == b->key;
            int found = module == EXACT  ? same
                        : same           ? 0
                        : module == STEM ? a->stem == b->stem
                                         : share_synset(self, ones[i], twos[j]);
            if (found && add_match(self, module, j, j + 1, i, i + 1) < 0)
                return -1;
        }
    }
    return 0;
}

/* Runs of words in `source` with their paraphrases in `target`; `backwards`: source is the
 * reference. */
static int match_phrases(Aligner *self, const Sentence *source, const Sentence *target,
                         int backwards)
{
    const uint32_t *starts = self->target_starts.buf, *targets = self->targets.buf;
    const Phrase *sources = ITEMS(Phrase, self->phrases) + source->phrases;
    const Phrase *wanted = ITEMS(Phrase, self->phrases) + target->phrases;
    const Place *places = ITEMS(Place, self->places) + target->phrases;
    for (int32_t s = 0; s < source->phrase_count; s++) {
        const Phrase *from = sources + s;
        for (uint32_t t = starts[from->node]; t < starts[from->node + 1]; t++) {
            uint32_t bit = filter_bit(targets[t]);
            if (!(target->filter[bit / 64] >> (bit % 64) & 1))
                continue;
            int32_t low = 0, high = target->phrase_count;
            while (low < high) {
                int32_t middle = low + (high - low) / 2;
                if (places[middle].node < targets[t])
                    low = middle + 1;
                else
                    high = middle;
            }
            for (; low < target->phrase_count && places[low].node == targets[t]; low++) {
                const Phrase *to = wanted + places[low].place;
                const Phrase *two = backwards ? from : to, *one = backwards ? to : from;
                if (add_match(self, PARAPHRASE, two->start, two->stop, one->start, one->stop) < 0)
                    return -1;
            }
        }
    }
    return 0;
}

static int find_matches(Aligner *self, const Sentence *one, const Sentence *two)
{
    size_t ones = (size_t)one->word_count, twos = (size_t)two->word_count;
    if (reserve(&self->heads, twos, sizeof(int32_t)) < 0 ||
        reserve(&self->tails, twos, sizeof(int32_t)) < 0 ||
        reserve(&self->used_times, ones, sizeof(int32_t)) < 0 ||
        reserve(&self->covered_times, twos, sizeof(int32_t)) < 0)
        return -1;
    self->match_count = 0;
    if (!ones || !twos)
        return 0;
    memset(self->heads.items, 0xff, twos * sizeof(int32_t));
    memset(self->used_times.items, 0, ones * sizeof(int32_t));
    memset(self->covered_times.items, 0, twos * sizeof(int32_t));
    if (match_words(self, one, two, EXACT) < 0)
        return -1;
    const int32_t *words = self->sentence_words.items;
    if (ones == twos && !memcmp(words + one->words, words + two->words, ones * sizeof(int32_t)))
        return 0;
    if (match_words(self, one, two, STEM) < 0 || match_words(self, one, two, SYNONYM) < 0 ||
        match_phrases(self, two, one, 1) < 0 || match_phrases(self, one, two, 0) < 0)
        return -1;
    return 0;
}

/* Searching. Paths live in slots; a slot has bit masks of the used words of both sentences. The
 * beam is a sorted list of slots, where a new path goes behind its equals. */

typedef struct {
    Path paths[BEAM];
    int order[BEAM];
    int count;
    uint64_t *bits; /* BEAM times `width` */
} Beam;

static int worse(const Path *a, const Path *b)
{
    if (a->gain != b->gain)
        return a->gain < b->gain;
    if (a->chunks != b->chunks)
        return a->chunks > b->chunks;
    return a->distance > b->distance;
}

static int any_bit(const uint64_t *bits, int32_t from, int32_t upto)
{
    for (int32_t i = from; i < upto; i++)
        if (bits[i / 64] >> (i % 64) & 1)
            return 1;
    return 0;
}

static void set_bits(uint64_t *bits, int32_t from, int32_t upto)
{
    for (int32_t i = from; i < upto; i++)
        bits[i / 64] |= (uint64_t)1 << (i % 64);
}

/* The slot in which the path was placed, or -1 if 40 others are at least as good. */
static int beam_insert(Beam *beam, const Path *path)
{
    int place = beam->count;
    while (place > 0 && worse(&beam->paths[beam->order[place - 1]], path))
        place--;
    if (place == BEAM)
        return -1;
    int slot = beam->count < BEAM ? beam->count++ : beam->order[BEAM - 1];
    memmove(beam->order + place + 1, beam->order + place,
            (size_t)(beam->count - 1 - place) * sizeof(int));
    beam->order[place] = slot;
    beam->paths[slot] = *path;
    return slot;
}

static void beam_sort(Beam *beam)
{
    for (int i = 1; i < beam->count; i++) {
        int slot = beam->order[i], place = i;
        while (place > 0 && worse(&beam->paths[beam->order[place - 1]], &beam->paths[slot])) {
            beam->order[place] = beam->order[place - 1];
            place--;
        }
        beam->order[place] = slot;
    }
}

static int32_t add_link(Aligner *self, int32_t match, int32_t before)
{
    if (self->link_count >= INT32_MAX ||
        reserve(&self->links, self->link_count + 1, sizeof(Link)) < 0)
        return -1;
    ITEMS(Link, self->links)[self->link_count] = (Link){match, before};
    return (int32_t)self->link_count++;
}

static void skip(Path *path)
{
    if (path->end >= 0) {
        path->chunks++;
        path->end = -1;
    }
}

static int broken(const Path *path, const Match *match)
{
    return path->end >= 0 && path->end != match->start;
}

/* A match that overlaps no other is taken by every path. */
static int is_sure(const Aligner *self, const Match *match)
{
    const int32_t *used_times = self->used_times.items, *covered_times = self->covered_times.items;
    for (int32_t i = match->start; i < match->stop; i++)
        if (used_times[i] != 1)
            return 0;
    for (int32_t j = match->first; j < match->last; j++)
        if (covered_times[j] != 1)
            return 0;
    return 1;
}

static int branch(Aligner *self, const Beam *now, Beam *next, int32_t position, size_t ones_width,
                  size_t width)
{
    const Match *matches = self->matches.items;
    next->count = 0;
    for (int p = 0; p < now->count; p++) {
        int slot = now->order[p];
        Path path = now->paths[slot];
        const uint64_t *bits = now->bits + (size_t)slot * width;
        int covered = any_bit(bits + ones_width, position, position + 1);
        int32_t number = covered ? -1 : ITEMS(int32_t, self->heads)[position];
        for (; number >= 0; number = matches[number].next) {
            const Match *match = matches + number;
            if (any_bit(bits, match->start, match->stop) ||
                any_bit(bits + ones_width, match->first, match->last))
                continue;
            int32_t one = match->stop - match->start, two = match->last - match->first;
            Path new = path;
            new.gain += match->module == EXACT ? one + two : one / 2 + two / 2;
            new.chunks += broken(&path, match);
            new.end = match->stop;
            int to = beam_insert(next, &new);
            if (to >= 0) {
                if ((next->paths[to].chain = add_link(self, number, path.chain)) < 0)
                    return -1;
                uint64_t *mask = next->bits + (size_t)to * width;
                memcpy(mask, bits, width * sizeof(uint64_t));
                set_bits(mask, match->start, match->stop);
                set_bits(mask + ones_width, match->first, match->last);
            }
            path.distance += abs(match->first - match->start);
        }
        if (!covered)
            skip(&path);
        int to = beam_insert(next, &path);
        if (to >= 0)
            memcpy(next->bits + (size_t)to * width, bits, width * sizeof(uint64_t));
    }
    return 0;
}

/* One step without a choice: a sure match, or no match at all. */
static int step(Aligner *self, Beam *beam, int32_t position, size_t ones_width, size_t width)
{
    int32_t sure = ITEMS(int32_t, self->given)[position];
    const Match *match = sure >= 0 ? ITEMS(Match, self->matches) + sure : NULL;
    for (int p = 0; p < beam->count; p++) {
        Path *path = &beam->paths[p];
        if (match) {
            path->chunks += broken(path, match);
            path->end = match->stop;
            if ((path->chain = add_link(self, sure, path->chain)) < 0)
                return -1;
        } else if (!any_bit(beam->bits + (size_t)p * width + ones_width, position, position + 1)) {
            skip(path);
        }
    }
    beam_sort(beam);
    return 0;
}

/* The last link of the best path (-1: no match at all), or -2 without memory. */
static int32_t search(Aligner *self, const Sentence *one, const Sentence *two)
{
    size_t ones_width = ((size_t)one->word_count + 63) / 64;
    size_t width = ones_width + ((size_t)two->word_count + 63) / 64;
    if (reserve(&self->bits, 2 * BEAM * width, sizeof(uint64_t)) < 0 ||
        reserve(&self->given, (size_t)two->word_count, sizeof(int32_t)) < 0)
        return -2;
    Beam beams[2], *now = &beams[0], *next = &beams[1];
    now->bits = self->bits.items;
    next->bits = now->bits + BEAM * width;
    now->count = next->count = 0;
    self->link_count = 0;

    Path start = {0, 0, 0, -1, -1};
    beam_insert(now, &start);
    memset(now->bits, 0, width * sizeof(uint64_t));
    int32_t *given = self->given.items;
    memset(given, 0xff, (size_t)two->word_count * sizeof(int32_t));
    const Match *matches = self->matches.items;
    for (size_t m = 0; m < self->match_count; m++)
        if (is_sure(self, matches + m)) {
            given[matches[m].first] = (int32_t)m;
            set_bits(now->bits, matches[m].start, matches[m].stop);
            set_bits(now->bits + ones_width, matches[m].first, matches[m].last);
        }

    for (int32_t position = 0; position < two->word_count; position++) {
        if (given[position] >= 0 || ITEMS(int32_t, self->heads)[position] < 0) {
            if (step(self, now, position, ones_width, width) < 0)
                return -2;
        } else {
            if (branch(self, now, next, position, ones_width, width) < 0)
                return -2;
            Beam *other = now;
            now = next;
            next = other;
        }
    }
    for (int p = 0; p < now->count; p++)
        skip(&now->paths[p]);
    beam_sort(now);
    return now->paths[now->order[0]].chain;
}

/* Counting */

static int32_t functions_in(const Aligner *self, const Sentence *sentence, int32_t from,
                            int32_t upto)
{
    const int32_t *words = ITEMS(int32_t, self->sentence_words) + sentence->words;
    int32_t count = 0;
    for (int32_t i = from; i < upto; i++)
        count += ITEMS(Word, self->words)[words[i]].function;
    return count;
}

static int count_pair(Aligner *self, const Sentence *one, const Sentence *two, int32_t *counts)
{
    memset(counts, 0, COUNTS * sizeof(int32_t));
    counts[0] = one->word_count;
    counts[1] = two->word_count;
    counts[2] = one->functions;
    counts[3] = two->functions;
    if (find_matches(self, one, two) < 0)
        return -1;
    if (!self->match_count)
        return 0;
    int32_t link = search(self, one, two);
    if (link == -2)
        return -1;
    int32_t next_start = -1, next_first = -1; /* of the match to the right */
    for (; link >= 0; link = ITEMS(Link, self->links)[link].before) {
        const Match *match = ITEMS(Match, self->matches) + ITEMS(Link, self->links)[link].match;
        int32_t ones = match->stop - match->start, twos = match->last - match->first;
        int32_t functions_one = functions_in(self, one, match->start, match->stop);
        int32_t functions_two = functions_in(self, two, match->first, match->last);
        int32_t *module = counts + 4 + 4 * match->module;
        module[0] += ones - functions_one;
        module[1] += twos - functions_two;
        module[2] += functions_one;
        module[3] += functions_two;
        counts[20] += match->stop != next_start || match->last != next_first;
        counts[21] += ones;
        counts[22] += twos;
        next_start = match->start;
        next_first = match->first;
    }
    return 0;
}

/* Python's side */

static int take_buffer(PyObject *object, Py_buffer *view, Py_ssize_t itemsize, const char *name)
{
    if (PyObject_GetBuffer(object, view, PyBUF_CONTIG_RO) < 0)
        return -1;
    if (view->itemsize != itemsize || (view->len && (uintptr_t)view->buf % (uintptr_t)itemsize)) {
        PyErr_Format(PyExc_ValueError, "%s must have aligned items of %zd bytes, got %zd", name,
                     itemsize, view->itemsize);
        return -1;
    }
    return 0;
}

/* Nothing the file says may lead outside of it. */
static int check_index(const Aligner *self)
{
    const uint32_t *children = self->child_starts.buf, *starts = self->target_starts.buf;
    const uint32_t *targets = self->targets.buf;
    size_t nodes = (size_t)self->node_words.len / 2, total = (size_t)self->targets.len / 4;
    if (!nodes || nodes >= UINT32_MAX || (size_t)self->child_starts.len / 4 != nodes + 1 ||
        (size_t)self->target_starts.len / 4 != nodes + 1)
        return -1;
    if (children[0] != 1 || children[nodes] != nodes || starts[0] || starts[nodes] != total)
        return -1;
    for (size_t n = 0; n < nodes; n++)
        if (children[n] > children[n + 1] || starts[n] > starts[n + 1])
            return -1;
    for (size_t t = 0; t < total; t++)
        if (targets[t] >= nodes)
            return -1;
    return 0;
}

static int Aligner_init(Aligner *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node_words", "child_starts", "target_starts", "targets", NULL};
    PyObject *node_words, *child_starts, *target_starts, *targets;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO", names, &node_words, &child_starts,
                                     &target_starts, &targets))
        return -1;
    if (self->node_words.obj) {
        PyErr_SetString(PyExc_ValueError, "an Aligner is initialised once");
        return -1;
    }
    if (take_buffer(node_words, &self->node_words, 2, names[0]) < 0 ||
        take_buffer(child_starts, &self->child_starts, 4, names[1]) < 0 ||
        take_buffer(target_starts, &self->target_starts, 4, names[2]) < 0 ||
        take_buffer(targets, &self->targets, 4, names[3]) < 0)
        return -1;
    if (check_index(self) < 0) {
        PyErr_SetString(PyExc_ValueError, "the paraphrase index contradicts itself");
        return -1;
    }
    self->nodes = (uint32_t)(self->node_words.len / 2);
    return 0;
}

static void Aligner_dealloc(Aligner *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyBuffer_Release(&self->node_words);
    PyBuffer_Release(&self->child_starts);
    PyBuffer_Release(&self->target_starts);
    PyBuffer_Release(&self->targets);
    Store *stores[] = {&self->words,         &self->synsets,    &self->sentences,
                       &self->sentence_words, &self->phrases,    &self->places,
                       &self->matches,
                       &self->heads,         &self->tails,      &self->used_times,
                       &self->covered_times, &self->given,      &self->bits,
                       &self->links};
    for (size_t i = 0; i < sizeof stores / sizeof *stores; i++)
        free(stores[i]->items);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static int as_uint32(PyObject *object, uint32_t *value)
{
    unsigned long number = PyLong_AsUnsignedLong(object);
    if (number == (unsigned long)-1 && PyErr_Occurred())
        return -1;
    if (number > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "number does not fit 32 bits");
        return -1;
    }
    *value = (uint32_t)number;
    return 0;
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static PyObject *Aligner_add_word(Aligner *self, PyObject *args)
{
    PyObject *key, *stem, *synsets;
    Word word = {0};
    if (!PyArg_ParseTuple(args, "OOpOi", &key, &stem, &word.function, &synsets, &word.number) ||
        as_uint32(key, &word.key) < 0 || as_uint32(stem, &word.stem) < 0)
        return NULL;
    PyObject *fast = PySequence_Fast(synsets, "synsets must be a sequence");
    if (fast == NULL)
        return NULL;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(fast);
    word.synsets = self->synset_count;
    word.synset_count = (uint32_t)count;
    if (count > INT32_MAX || self->word_count >= INT32_MAX ||
        reserve(&self->synsets, self->synset_count + (size_t)count, sizeof(uint32_t)) < 0 ||
        reserve(&self->words, self->word_count + 1, sizeof(Word)) < 0) {
        Py_DECREF(fast);
        return PyErr_NoMemory();
    }
    uint32_t *own = ITEMS(uint32_t, self->synsets) + word.synsets;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (as_uint32(PySequence_Fast_GET_ITEM(fast, i), &own[i]) < 0) {
            Py_DECREF(fast);
            return NULL;
        }
        word.signature |= (uint64_t)1 << ((own[i] * 2654435761u) >> 26);
    }
    Py_DECREF(fast);
    if (count)
        qsort(own, (size_t)count, sizeof(uint32_t), by_size);
    self->synset_count += (size_t)count;
    ITEMS(Word, self->words)[self->word_count] = word;
    return PyLong_FromSize_t(self->word_count++);
}

/* The child of a node by word number; 0, the root, if there is none. */
static uint32_t child(const Aligner *self, uint32_t node, int32_t number)
{
    const uint16_t *words = self->node_words.buf;
    const uint32_t *starts = self->child_starts.buf;
    uint32_t low = starts[node], high = starts[node + 1], end = high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (words[middle] < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < end && words[low] == number ? low : 0;
}

static int by_node(const void *a, const void *b)
{
    const Place *x = a, *y = b;
    return x->node != y->node ? (x->node > y->node) - (x->node < y->node)
                              : (x->place > y->place) - (x->place < y->place);
}

static int add_phrases(Aligner *self, Sentence *sentence)
{
    const Word *words = self->words.items;
    const int32_t *numbers = ITEMS(int32_t, self->sentence_words) + sentence->words;
    sentence->phrases = self->phrase_count;
    size_t count = self->phrase_count;
    for (int32_t start = 0; start < sentence->word_count; start++) {
        uint32_t node = 0;
        for (int32_t stop = start; stop < sentence->word_count; stop++) {
            node = child(self, node, words[numbers[stop]].number);
            if (!node)
                break;
            if (reserve(&self->phrases, count + 1, sizeof(Phrase)) < 0)
                return -1;
            ITEMS(Phrase, self->phrases)[count++] = (Phrase){node, start, stop + 1};
            uint32_t bit = filter_bit(node);
            sentence->filter[bit / 64] |= (uint64_t)1 << (bit % 64);
        }
    }
    if (count - self->phrase_count > INT32_MAX)
        return -1;
    sentence->phrase_count = (int32_t)(count - self->phrase_count);
    if (reserve(&self->places, count, sizeof(Place)) < 0)
        return -1;
    for (int32_t i = 0; i < sentence->phrase_count; i++) {
        size_t at = sentence->phrases + (size_t)i;
        ITEMS(Place, self->places)[at] = (Place){ITEMS(Phrase, self->phrases)[at].node, i};
    }
    if (sentence->phrase_count)
        qsort(ITEMS(Place, self->places) + sentence->phrases, (size_t)sentence->phrase_count,
              sizeof(Place), by_node);
    self->phrase_count = count;
    return 0;
}

static PyObject *Aligner_add_sentence(Aligner *self, PyObject *words)
{
    if (!self->nodes) {
        PyErr_SetString(PyExc_ValueError, "the Aligner has no index");
        return NULL;
    }
    PyObject *fast = PySequence_Fast(words, "words must be a sequence");
    if (fast == NULL)
        return NULL;
    Sentence sentence = {0};
    Py_ssize_t count = PySequence_Fast_GET_SIZE(fast);
    if (count > LONGEST) {
        Py_DECREF(fast);
        PyErr_Format(PyExc_ValueError, "a sentence has at most %d words, got %zd", LONGEST, count);
        return NULL;
    }
    sentence.words = self->sentence_word_count;
    sentence.word_count = (int32_t)count;
    if (reserve(&self->sentence_words, sentence.words + (size_t)count, sizeof(int32_t)) < 0 ||
        reserve(&self->sentences, self->sentence_count + 1, sizeof(Sentence)) < 0) {
        Py_DECREF(fast);
        return PyErr_NoMemory();
    }
    int32_t *own = ITEMS(int32_t, self->sentence_words) + sentence.words;
    for (Py_ssize_t i = 0; i < count; i++) {
        size_t word = PyLong_AsSize_t(PySequence_Fast_GET_ITEM(fast, i));
        if (word == (size_t)-1 && PyErr_Occurred()) {
            Py_DECREF(fast);
            return NULL;
        }
        if (word >= self->word_count) {
            Py_DECREF(fast);
            PyErr_Format(PyExc_IndexError, "no word has the number %zu", word);
            return NULL;
        }
        own[i] = (int32_t)word;
        sentence.functions += ITEMS(Word, self->words)[word].function;
    }
    Py_DECREF(fast);
    if (add_phrases(self, &sentence) < 0)
        return PyErr_NoMemory();
    self->sentence_word_count += (size_t)count;
    ITEMS(Sentence, self->sentences)[self->sentence_count] = sentence;
    return PyLong_FromSize_t(self->sentence_count++);
}

static int one_pair(Aligner *self, PyObject *pair, int32_t *counts)
{
    Py_ssize_t hypothesis, reference;
    if (!PyTuple_Check(pair)) {
        PyErr_SetString(PyExc_TypeError, "a pair must be a tuple of two numbers");
        return -1;
    }
    if (!PyArg_ParseTuple(pair, "nn", &hypothesis, &reference) || PyErr_CheckSignals() < 0)
        return -1;
    if (hypothesis < 0 || (size_t)hypothesis >= self->sentence_count || reference < 0 ||
        (size_t)reference >= self->sentence_count) {
        PyErr_SetString(PyExc_IndexError, "no sentence has this number");
        return -1;
    }
    const Sentence *sentences = self->sentences.items;
    if (count_pair(self, sentences + hypothesis, sentences + reference, counts) < 0) {
        PyObject *numbers = NULL;
        if (self->match_count < MOST_MATCHES)
            PyErr_NoMemory();
        else if ((numbers = Py_BuildValue("nn", hypothesis, reference)) != NULL)
            PyErr_SetObject(PyExc_OverflowError, numbers);
        Py_XDECREF(numbers);
        return -1;
    }
    return 0;
}

static PyObject *Aligner_statistics(Aligner *self, PyObject *pairs)
{
    PyObject *list = PySequence_List(pairs); /* a copy that nobody else can change */
    if (list == NULL)
        return NULL;
    Py_ssize_t size = PyList_GET_SIZE(list);
    const Py_ssize_t row = COUNTS * sizeof(int32_t);
    if (size > PY_SSIZE_T_MAX / row) {
        Py_DECREF(list);
        return PyErr_NoMemory();
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, size * row);
    for (Py_ssize_t i = 0; bytes && i < size; i++) {
        int32_t counts[COUNTS];
        if (one_pair(self, PyList_GET_ITEM(list, i), counts) < 0)
            Py_CLEAR(bytes);
        else
            memcpy(PyBytes_AS_STRING(bytes) + i * row, counts, (size_t)row);
    }
    Py_DECREF(list);
    return bytes;
}

static PyMethodDef Aligner_methods[] = {
    {"add_word", (PyCFunction)Aligner_add_word, METH_VARARGS, "Make a word known."},
    {"add_sentence", (PyCFunction)Aligner_add_sentence, METH_O, "Make a sentence known."},
    {"statistics", (PyCFunction)Aligner_statistics, METH_O,
     "The counts of (hypothesis, reference) pairs, 23 int32 each."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot Aligner_slots[] = {
    {Py_tp_doc, "Knows words and sentences by number and aligns pairs of sentences."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, Aligner_init},
    {Py_tp_dealloc, Aligner_dealloc},
    {Py_tp_methods, Aligner_methods},
    {0, NULL},
};

static PyType_Spec Aligner_spec = {
    .name = "starc_eval._meteor.Aligner",
    .basicsize = sizeof(Aligner),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = Aligner_slots,
};

static int module_exec(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&Aligner_spec);
    if (type == NULL)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Aligner", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_meteor",
    .m_doc = "METEOR's word alignment in C.",
    .m_size = 0,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__meteor(void)
{
    return PyModuleDef_Init(&module_definition);
}
