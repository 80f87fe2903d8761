// Costs the compiler a few hundred megabytes: deep templates over the standard library.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

template <int N> struct Tagged {
    int value;
    bool operator<(const Tagged &other) const { return value < other.value; }
};

template <int N> int exercise(int seed) {
    std::map<Tagged<N>, std::vector<std::string>> map;
    for (int i = 0; i < seed; i++) map[{i % 7}].push_back(std::to_string(i * N));
    std::vector<std::tuple<int, std::string, Tagged<N>>> rows;
    for (auto &[key, list] : map) {
        for (auto &text : list) rows.emplace_back(key.value, text, key);
    }
    std::stable_sort(rows.begin(), rows.end(), [](const auto &a, const auto &b) { return a < b; });
    std::variant<int, std::string, Tagged<N>> any = Tagged<N>{seed};
    std::function<int(int)> f = [&](int x) {
        return std::visit([x](auto &v) { return static_cast<int>(sizeof(v)) + x; }, any);
    };
    return std::accumulate(rows.begin(), rows.end(), 0, [&](int sum, auto &row) { return sum + f(std::get<0>(row)); });
}

template <int... N> int all(int seed, std::integer_sequence<int, N...>) { return (exercise<N>(seed) + ...); }

int main(int argc, char **) {
    std::regex expression("(a|b)*c+[0-9]{2,5}");
    std::cout << all(argc * 100, std::make_integer_sequence<int, 10>()) << std::regex_match("abc12", expression);
}
