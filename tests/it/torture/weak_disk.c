/* A disk that hesitates, fills up and breaks, for a server that is started with this in LD_PRELOAD. The file that
 * WEAK_DISK names says what is wrong at the moment: "slow 300" holds back each sync by 300 ms, "broken" has each sync
 * fail, "full" refuses what is written to files after half of it, as a disk does when it fills up in the middle. A write at a place
 * (Postgres) is refused where the file would have to grow. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int wrong(char *what, size_t size) {
    const char *path = getenv("WEAK_DISK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) {
        return 0;
    }
    ssize_t length = read(file, what, size - 1);
    close(file);
    what[length > 0 ? length : 0] = 0;
    return length > 0;
}

static int fails(void) {
    char what[32];
    if (!wrong(what, sizeof what)) {
        return 0;
    }
    if (strncmp(what, "slow ", 5) == 0) {
        long millis = atol(what + 5);
        struct timespec time = {millis / 1000, millis % 1000 * 1000000};
        nanosleep(&time, NULL);
    }
    if (strncmp(what, "broken", 6) == 0) {
        errno = EIO;
        return 1;
    }
    return 0;
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) {
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    }
    return fails() ? -1 : real(file);
}

int fsync(int file) {
    static int (*real)(int);
    if (!real) {
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    }
    return fails() ? -1 : real(file);
}

ssize_t write(int file, const void *bytes, size_t length) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) {
        real = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    }
    struct stat about;
    char what[32];
    if (length > 0 && fstat(file, &about) == 0 && S_ISREG(about.st_mode) && wrong(what, sizeof what) &&
        strncmp(what, "full", 4) == 0) {
        if (length < 2) {
            errno = ENOSPC;
            return -1;
        }
        /* The rest is refused when it is tried. */
        static __thread int refuse;
        refuse = !refuse;
        if (!refuse) {
            errno = ENOSPC;
            return -1;
        }
        return real(file, bytes, length / 2);
    }
    return real(file, bytes, length);
}

/* Whether a disk that is full has no room for a file to end there. */
static int has_no_room(int file, off_t end) {
    struct stat about;
    char what[32];
    return fstat(file, &about) == 0 && S_ISREG(about.st_mode) && end > about.st_size && wrong(what, sizeof what) &&
           strncmp(what, "full", 4) == 0;
}

ssize_t pwrite(int file, const void *bytes, size_t length, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real) {
        real = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    }
    if (has_no_room(file, at + (off_t)length)) {
        errno = ENOSPC;
        return -1;
    }
    return real(file, bytes, length, at);
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off_t at) {
    return pwrite(file, bytes, length, at);
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at) {
    static ssize_t (*real)(int, const struct iovec *, int, off_t);
    if (!real) {
        real = (ssize_t (*)(int, const struct iovec *, int, off_t))dlsym(RTLD_NEXT, "pwritev");
    }
    off_t end = at;
    for (int part = 0; part < count; part++) {
        end += (off_t)parts[part].iov_len;
    }
    if (has_no_room(file, end)) {
        errno = ENOSPC;
        return -1;
    }
    return real(file, parts, count, at);
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off_t at) {
    return pwritev(file, parts, count, at);
}

int posix_fallocate(int file, off_t at, off_t length) {
    static int (*real)(int, off_t, off_t);
    if (!real) {
        real = (int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate");
    }
    return has_no_room(file, at + length) ? ENOSPC : real(file, at, length);
}

int posix_fallocate64(int file, off_t at, off_t length) {
    return posix_fallocate(file, at, length);
}
