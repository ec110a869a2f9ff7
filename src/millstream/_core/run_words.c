/* Words of plain commands, in the forms in which clients usually write them. */
#include "runs.h"

#define WORDS_MAX (1 << 16) /* words of a command that is taken; more take the ordinary way */
#define DIGITS_MAX 18       /* of a number that surely is within 64 bits */

/* "*3\r\n": the number behind the mark, without sign or leading zero; NULL for anything else, and where it ends early */
static const char *get_head(const char *at, const char *end, char mark, int64_t *number)
{
    if (at == end || *at++ != mark)
        return NULL;
    int64_t value = 0;
    const char *first = at;
    while (at < end && (unsigned char)(*at - '0') < 10 && at - first < 10)
        value = value * 10 + (*at++ - '0');
    if (at == first || (*first == '0' && at - first > 1) || end - at < 2 || at[0] != '\r' || at[1] != '\n')
        return NULL;
    *number = value;
    return at + 2;
}

/* The command at `at`, into run->words; where it ends, or NULL if it is not all here or not in the usual form */
const char *split(Run *run, const char *at, const char *end)
{
    int64_t count, size;
    at = get_head(at, end, '*', &count);
    if (at == NULL || count < 1 || count > WORDS_MAX || count > (end - at) / 6) /* "$0", two line ends */
        return NULL;
    if (buf_reserve(&run->of->words, (Py_ssize_t)sizeof(View) * count) < 0) {
        PyErr_Clear();
        return NULL;
    }
    run->words = (View *)run->of->words.data;
    for (int64_t word = 0; word < count; word++) {
        at = get_head(at, end, '$', &size);
        if (at == NULL || end - at < size + 2 || at[size] != '\r' || at[size + 1] != '\n')
            return NULL;
        run->words[word] = (View){at, size};
        at += size + 2;
    }
    run->count = count;
    return at;
}

/* A number in its one usual form; -1 for any other */
int64_t get_number(View word)
{
    if (word.size < 1 || word.size > DIGITS_MAX || (*word.data == '0' && word.size > 1))
        return -1;
    int64_t value = 0;
    for (Py_ssize_t at = 0; at < word.size; at++) {
        if ((unsigned char)(word.data[at] - '0') > 9)
            return -1;
        value = value * 10 + (word.data[at] - '0');
    }
    return value;
}

/* An end of a range: "-", "+", "ms" or "ms-seq"; 0 for any other form */
static int get_bound(View word, uint64_t missing, Id *id)
{
    if (is_sign(word, '-') || is_sign(word, '+')) {
        *id = *word.data == '-' ? 0 : ID_MAX;
        return 1;
    }
    const char *dash = word.size > 0 ? memchr(word.data, '-', (size_t)word.size) : NULL;
    Py_ssize_t head = dash == NULL ? word.size : dash - word.data;
    int64_t ms = get_number((View){word.data, head});
    int64_t seq = dash == NULL ? 0 : get_number((View){dash + 1, word.size - head - 1});
    if (ms < 0 || seq < 0)
        return 0;
    *id = ID_MAKE(ms, dash == NULL ? missing : (uint64_t)seq);
    return 1;
}

/* An id: "ms" or "ms-seq"; 0 for any other form */
int get_id(View word, Id *id)
{
    return !is_sign(word, '-') && !is_sign(word, '+') && get_bound(word, 0, id);
}

/* An end of a range, which "(" leaves out */
int get_edge(View word, int is_end, Id *id)
{
    int out = word.size > 0 && *word.data == '(';
    View rest = {word.data + out, word.size - out};
    if ((out && (is_sign(rest, '-') || is_sign(rest, '+'))) || !get_bound(rest, is_end ? UINT64_MAX : 0, id))
        return 0;
    if (out && *id == (is_end ? 0 : ID_MAX))
        return 0;
    *id += !out ? 0 : is_end ? ID_MAX : 1;
    return 1;
}
