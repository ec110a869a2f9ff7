/* CRC-32 as in zlib: by tables, eight bytes at a time, or by the processor's carry-less multiplication, 64 at a time.
 *
 * The second way folds the data: a fold by n bits multiplies by x^n modulo the polynomial (all bits reversed), so the
 * remainder of what lies ahead stays the same. Gopal and others, Fast CRC Computation Using PCLMULQDQ, Intel 2009.
 */
#include "core.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HAS_FOLDING 1
#include <immintrin.h>
static int is_folding;
#endif

/* tables[n][b] is the effect of byte b with n more bytes behind it */
static uint32_t tables[8][256];

void crc_prepare(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++)
            tables[table][byte] = tables[table - 1][byte] >> 8 ^ tables[0][tables[table - 1][byte] & 0xff];
#ifdef HAS_FOLDING
    __builtin_cpu_init();
    is_folding = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

#ifdef HAS_FOLDING
#define FOLDING __attribute__((target("pclmul,sse4.1")))
#define FOLD_FROM 64

FOLDING static inline __m128i load(const unsigned char *at) { return _mm_loadu_si128((const __m128i *)at); }

/* Both halves of what was folded, multiplied, and the bytes where they now lie */
FOLDING static inline __m128i fold(__m128i folded, __m128i powers, __m128i bytes)
{
    __m128i low = _mm_clmulepi64_si128(folded, powers, 0x00), high = _mm_clmulepi64_si128(folded, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), bytes);
}

/* Of 64 bytes or more, in whole pieces of 16; the CRC is not inverted here */
FOLDING static uint32_t crc_by_folding(const unsigned char *at, Py_ssize_t size, uint32_t crc)
{
    const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_8 = _mm_set_epi64x(0, 0x0163cd6124), barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_words = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i one = _mm_xor_si128(load(at), _mm_cvtsi32_si128((int)crc));
    __m128i two = load(at + 16), three = load(at + 32), four = load(at + 48), rest;
    for (at += 64, size -= 64; size >= 64; at += 64, size -= 64) {
        one = fold(one, by_64, load(at));
        two = fold(two, by_64, load(at + 16));
        three = fold(three, by_64, load(at + 32));
        four = fold(four, by_64, load(at + 48));
    }
    one = fold(fold(fold(one, by_16, two), by_16, three), by_16, four);
    for (; size >= 16; at += 16, size -= 16)
        one = fold(one, by_16, load(at));
    one = _mm_xor_si128(_mm_clmulepi64_si128(one, by_16, 0x10), _mm_srli_si128(one, 8)); /* 128 bits to 96 */
    rest = _mm_srli_si128(one, 4);
    one = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(one, low_words), by_8, 0x00), rest); /* to 64 */
    rest = _mm_clmulepi64_si128(_mm_and_si128(one, low_words), barrett, 0x10);                  /* Barrett: to 32 */
    rest = _mm_clmulepi64_si128(_mm_and_si128(rest, low_words), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(one, rest), 1);
}
#endif

static inline uint32_t get_word(const unsigned char *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

uint32_t crc32_of(const char *data, Py_ssize_t size, uint32_t crc)
{
    const unsigned char *at = (const unsigned char *)data;
    crc = ~crc;
#ifdef HAS_FOLDING
    if (is_folding && size >= FOLD_FROM) {
        Py_ssize_t whole = size & ~(Py_ssize_t)15;
        crc = crc_by_folding(at, whole, crc);
        at += whole, size -= whole;
    }
#endif
    for (; size >= 8; at += 8, size -= 8) {
        uint32_t low = get_word(at) ^ crc, high = get_word(at + 4);
        crc = tables[7][low & 0xff] ^ tables[6][low >> 8 & 0xff] ^ tables[5][low >> 16 & 0xff] ^ tables[4][low >> 24] ^
              tables[3][high & 0xff] ^ tables[2][high >> 8 & 0xff] ^ tables[1][high >> 16 & 0xff] ^ tables[0][high >> 24];
    }
    while (size-- > 0)
        crc = crc >> 8 ^ tables[0][(crc ^ *at++) & 0xff];
    return ~crc;
}
