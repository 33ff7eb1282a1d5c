/* Loaded before the C library of a server. It shifts the server's wall clock by the number of
   microseconds in the file that SHIFTED_CLOCK names. Clocks that measure time are not shifted, as
   when the real wall clock is stepped. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *shift;

__attribute__((constructor)) static void open_shift(void) {
    int file = open(getenv("SHIFTED_CLOCK"), O_RDONLY);
    void *memory = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || memory == MAP_FAILED) abort();
    shift = memory;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
    (void)tz;
    struct timespec now;
    if (syscall(SYS_clock_gettime, CLOCK_REALTIME, &now)) return -1;
    long long us = now.tv_sec * 1000000LL + now.tv_nsec / 1000 + (shift ? *shift : 0);
    tv->tv_sec = us / 1000000;
    tv->tv_usec = us % 1000000;
    return 0;
}
