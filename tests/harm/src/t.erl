-module(t).
-export([main/0]).
main() ->
    T = ets:new(x, [set, public]),
    [ets:insert(T, {I, lists:duplicate(10, I), <<I:1024>>}) || I <- lists:seq(1, 150000)],
    S = lists:sum([length(element(2, hd(ets:lookup(T, I)))) || I <- lists:seq(1, 150000, 7)]),
    io:format("~p ~p~n", [ets:info(T, size), S]),
    [ets:delete(T, I) || I <- lists:seq(1, 150000, 2)],
    Ps = [spawn_monitor(fun() -> exit(lists:sum(lists:seq(1, 50000))) end) || _ <- lists:seq(1, 50)],
    R = [receive {'DOWN', M, _, _, V} -> V end || {_, M} <- Ps],
    io:format("~p~n", [lists:usort(R)]),
    halt(6).
