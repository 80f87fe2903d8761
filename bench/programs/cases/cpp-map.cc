// program: C++, std::unordered_map and std::map
// class: C++
// version: g++ -dumpfullversion
// random: yes
// expect: 750417961090
// large: 4g
// best: mimalloc
// blocks: yes
#include "phases.h"
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

int main() {
    const uint64_t size = size_wanted(), count = size ? size / 200 : 1000000;
    uint64_t state = 1, total = 0;
    std::vector<uint64_t> keys(count);
    std::unordered_map<uint64_t, std::string> hashed;
    std::map<uint64_t, uint64_t> ordered;
    for (uint64_t at = 0; at < count; at++) {
        keys[at] = next_number(&state);
        hashed.emplace(keys[at], "value number " + std::to_string(at));
        ordered.emplace(keys[at], at);
    }
    phase_steady();
    const uint64_t begin = state;
    do {
        state = begin;
        total = 0;
        for (int round = 0; round < (size ? 3000000 : 1500000); round++) {
            uint64_t key = keys[next_number(&state) % count];
            total += hashed.find(key)->second.size() + ordered.find(key)->second;
        }
    } while (phase_again());
    phase_end(total);
}
