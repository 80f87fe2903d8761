// A multithreaded program that forks while its other threads are inside malloc. A child allocates, frees and
// leaves. An allocator that does not hold its locks over fork hangs a child within a few hundred tries.
// usage: fork-threads FORKS
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

static std::atomic<bool> done{false};

static void churn(unsigned seed) {
    std::map<unsigned, std::string> map;
    std::vector<std::unique_ptr<char[]>> blocks(64);
    unsigned random = seed * 2654435761u + 1;
    while (!done.load(std::memory_order_relaxed)) {
        random = random * 1664525u + 1013904223u;
        map[random % 1000] = std::string(random >> 22, 'x');
        if (map.size() > 500) map.erase(map.begin());
        blocks[random % 64].reset(new char[(random >> 8) % 200000 + 1]);
        if (random % 4096 == 0) {
            // Threads come and go too: their heaps are handed over.
            std::thread([] { std::vector<std::string> v(200, std::string(100, 'y')); }).join();
        }
    }
}

// In the child: 0, or what is wrong.
static int child(const std::string &from_parent) {
    alarm(30); // a child that hangs dies of SIGALRM, and the parent says so
    std::vector<std::string> strings;
    for (int i = 0; i < 50; i++) strings.emplace_back(static_cast<size_t>(i) * 97, 'c');
    for (int i = 0; i < 50; i++) {
        if (strings[static_cast<size_t>(i)] != std::string(static_cast<size_t>(i) * 97, 'c')) return 1;
    }
    char *big = static_cast<char *>(malloc(300000));
    if (big == nullptr) return 2;
    memset(big, 1, 300000);
    free(big);
    return from_parent == std::string(5000, 'p') ? 0 : 3;
}

int main(int argc, char **argv) {
    const long forks = argc > 1 ? atol(argv[1]) : 1000;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 4; i++) threads.emplace_back(churn, i + 1);
    const std::string shared(5000, 'p');
    std::vector<pid_t> children;
    int status_of_run = 0;
    for (long i = 0; i < forks && status_of_run == 0; i++) {
        const pid_t pid = fork();
        if (pid < 0) {
            std::perror("fork");
            status_of_run = 1;
            break;
        }
        if (pid == 0) _exit(child(shared));
        int status = 0;
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
        if (status != 0) {
            std::fprintf(stderr, "child of fork %ld: %s %d\n", i, WIFSIGNALED(status) ? "signal" : "status",
                         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            status_of_run = 1;
        }
    }
    done = true;
    for (auto &thread : threads) thread.join();
    if (status_of_run == 0) std::puts("fork-threads: ok");
    return status_of_run;
}
