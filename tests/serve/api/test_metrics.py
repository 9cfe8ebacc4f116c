"""What Prometheus reads of a server."""

from pathlib import Path

from tests.serve.service import get, local_service, metric_samples, post, save_task


def test_metrics_count_requests_by_route_and_never_by_what_clients_chose(tmp_path: Path) -> None:
    with local_service(save_task(tmp_path / "small")) as local:
        for texts in (["the cat"], ["the cat", "a mouse"]):
            assert local.post("/v1/translate", text=texts)[0] == 200
        assert post(local.port, "/v1/translate", text="a cat", model="secret")[0] == 404
        assert get(local.port, "/secret/path")[0] == 404
        samples = metric_samples(local.port)
        text = get(local.port, "/metrics")[1]
    route = ("route", "/v1/translate")
    counted = {labels: value for (name, labels), value in samples.items() if name == "regard_requests_total"}
    assert counted == {
        (("model", "small"), route, ("status", "200")): 2,
        (("model", ""), route, ("status", "404")): 1,
        (("model", ""), ("route", "unknown"), ("status", "404")): 1,
    }
    assert samples["regard_items_total", (("model", "small"), route)] == 3
    assert samples["regard_tokens_total", (("model", "small"), route)] > 3
    assert samples["regard_request_seconds_count", (route,)] == 3
    steps, outputs = (samples[f"regard_engine_{name}_total", (("model", "small"),)] for name in ("steps", "outputs"))
    assert 0 < outputs <= 64 * steps
    assert samples["regard_resident_memory_bytes", ()] > 1e8
    assert samples["regard_requests_in_progress", ()] == 1
    assert "secret" not in text


def test_metrics_need_a_key_where_the_server_has_keys(tmp_path: Path) -> None:
    with local_service(save_task(tmp_path / "small"), keys=["key"]) as local:
        found = [get(local.port, "/metrics", authorization=f"Bearer {key}")[0] for key in ("", "wrong", "key")]
    assert found == [401, 401, 200]
