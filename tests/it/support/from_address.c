/* The address of a process that is started with this in LD_PRELOAD: FROM_ADDRESS says from which IPv4 address of this
 * machine its connections come. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

int connect(int socket, const struct sockaddr *to, socklen_t length) {
    static int (*real)(int, const struct sockaddr *, socklen_t);
    if (!real) {
        real = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    }
    const char *address = getenv("FROM_ADDRESS");
    if (address && to->sa_family == AF_INET) {
        struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(address)};
        if (bind(socket, (struct sockaddr *)&from, sizeof from) != 0) {
            return -1;
        }
    }
    return real(socket, to, length);
}
