/* A clock that is wrong, for a server that is started with this in LD_PRELOAD: the file that WRONG_CLOCK names says by
 * how many milliseconds. A second number is the time at which it stands, in milliseconds since 1970. Clocks that only
 * measure how long something takes are right. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off_by(long *stands_at) {
    const char *path = getenv("WRONG_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) {
        return 0;
    }
    char text[24];
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    char *rest;
    long millis = strtol(text, &rest, 10);
    *stands_at = strtol(rest, NULL, 10);
    return millis;
}

static long micros(long seconds, long micros) {
    long stands_at = 0;
    long millis = seconds * 1000 + off_by(&stands_at);
    return stands_at > 0 ? stands_at * 1000 : millis * 1000 + micros;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    static int (*real)(struct timeval *restrict, void *restrict);
    if (!real) {
        real = (int (*)(struct timeval *restrict, void *restrict))dlsym(RTLD_NEXT, "gettimeofday");
    }
    int answer = real(time, zone);
    if (answer == 0) {
        long all = micros(time->tv_sec, time->tv_usec);
        time->tv_sec = all / 1000000;
        time->tv_usec = all % 1000000;
    }
    return answer;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) {
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    }
    int answer = real(clock, time);
    if (answer == 0 && clock == CLOCK_REALTIME) {
        long stands_at = 0;
        time->tv_sec += off_by(&stands_at) / 1000;
    }
    return answer;
}
