// Which instructions beyond plain C++ there are.

#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define LUDUS_AVX512 1
#include <immintrin.h>
#endif

#if !defined(LUDUS_AVX512) && defined(__AVX__)
#define LUDUS_AVX 1
#include <immintrin.h>
#endif

#if defined(LUDUS_AVX512) && defined(__AVX512BF16__)
#define LUDUS_PAIRS 1  // one instruction multiplies pairs of bf16 and adds them to 16 sums
#endif

#if defined(LUDUS_PAIRS) && !defined(__AMX_BF16__)
#define LUDUS_QUICK_PAIRS 1  // Xeons with tiles multiply pairs more slowly than single fp32 numbers
#endif

#if defined(LUDUS_PAIRS) && defined(__AMX_BF16__) && defined(__linux__)
#define LUDUS_TILES 1  // one instruction multiplies 16 rows of 32 bf16 with 16 others; Linux has to be asked first
#endif
