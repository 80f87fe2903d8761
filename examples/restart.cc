// A list of words that survives a restart: blocks that lead to each other by handles, and a root.
//
// c++ -std=c++17 restart.cc $(pkg-config --cflags --libs megapage) -o restart
// ./restart [DIRECTORY]     where the pool is to be; without it, on a mounted hugetlbfs

#include <megapage.h>

#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>

namespace {

void check(int answer) {
    if (answer < 0) throw std::runtime_error(megapage_message());
}

class Pool {
public:
    explicit Pool(const char *directory) {
        check(directory ? megapage_pool_open_in(directory, "example-cc", MEGAPAGE_2M, &id_)
                        : megapage_pool_open("example-cc", MEGAPAGE_2M, &id_));
    }
    ~Pool() { megapage_pool_close(id_); }
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;
    megapage_pool id() const { return id_; }

private:
    megapage_pool id_ = 0;
};

// What is in a block: the next one, and text behind.
struct Word {
    megapage_handle next;
    char text[48];
};

class Words {
public:
    Words(const Pool &pool, const char *name) {
        megapage_options options;
        check(megapage_options_init(&options, 4u << 20));
        options.unlink = MEGAPAGE_UNLINK_NEVER;
        check(megapage_heap_open(pool.id(), name, &options, &heap_, nullptr));
    }
    ~Words() { megapage_heap_close(heap_); }
    Words(const Words &) = delete;
    Words &operator=(const Words &) = delete;

    megapage_handle first() const {
        megapage_handle root;
        check(megapage_heap_root(heap_, &root));
        return root;
    }

    // Puts a word before all others.
    void add(const std::string &text) {
        megapage_handle handle;
        check(megapage_heap_allocate(heap_, sizeof(Word), 0, MEGAPAGE_ZEROED, tag_, &handle));
        Word *word = at(handle);
        word->next = first();
        std::strncpy(word->text, text.c_str(), sizeof word->text - 1);
        check(megapage_heap_set_root(heap_, handle));
    }

    Word *at(megapage_handle handle) const {
        void *address;
        check(megapage_heap_block(heap_, handle, tag_, &address, nullptr));
        return static_cast<Word *>(address);
    }

private:
    megapage_heap heap_ = 0;
    const uint64_t tag_ = megapage_tag("word/1");
};

} // namespace

int main(int argc, char **argv) {
    try {
        Pool pool(argc > 1 ? argv[1] : nullptr);
        Words words(pool, "words");
        const bool found = words.first().serial != 0;
        if (!found)
            for (const char *text : {"survives", "memory", "huge"}) words.add(text);
        std::cout << (found ? "found:" : "built:");
        for (megapage_handle at = words.first(); at.serial != 0; at = words.at(at)->next)
            std::cout << ' ' << words.at(at)->text;
        std::cout << '\n';
    } catch (const std::exception &error) {
        std::cerr << "restart: " << error.what() << '\n';
        return 2;
    }
}
