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

static long shifted(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (failed || clock != CLOCK_REALTIME || !shift) return failed;
    long long ns = now->tv_sec * 1000000000LL + now->tv_nsec + *shift * 1000;
    now->tv_sec = ns / 1000000000;
    now->tv_nsec = ns % 1000000000;
    return 0;
}

/* Valkey reads the wall clock by this, Redis by the next. */
int clock_gettime(clockid_t clock, struct timespec *now) { return shifted(clock, now) ? -1 : 0; }

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
    (void)tz;
    struct timespec now;
    if (shifted(CLOCK_REALTIME, &now)) return -1;
    tv->tv_sec = now.tv_sec;
    tv->tv_usec = now.tv_nsec / 1000;
    return 0;
}
