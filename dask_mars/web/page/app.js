// The page: limits at the top, computations on the left, and one of them, or the workers.

import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { Computation, VIEW_NAMES } from "./computation.js";
import { Computations } from "./computations.js";
import { percent, plural, title } from "./format.js";
import { follow, useAnswer } from "./live.js";
import { Strip } from "./strip.js";
import { Workers } from "./workers.js";

//: Number of states in the small chart of memory.
const REMEMBERED = 180;

/** Return what the address asks for: `#/c/<id>/<view>?key=…`, or `#<view>` of whatever is the newest. */
function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [kind, id, view] = path.split("/").map(decodeURIComponent);
  const ofNewest = VIEW_NAMES.includes(kind) ? kind : null;
  return { chosen: kind === "c" && id ? id : null, view: view || ofNewest, query: new URLSearchParams(query) };
}

function useRoute() {
  const [current, setCurrent] = useState(route);
  useEffect(() => {
    const change = () => setCurrent(route());
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return current;
}

/** Follow the service; return its last state, the problem if there is one, and earlier uses of memory. */
function useService() {
  const [service, setService] = useState({ state: null, problem: null, memory: [] });
  const following = useRef(null);
  useEffect(() => {
    let isKnown = false;
    following.current = follow(
      (state) => {
        isKnown = true;
        setService(({ memory }) => ({
          state,
          problem: null,
          memory: [...memory.slice(1 - REMEMBERED), [Date.now() / 1000, state.memory]],
        }));
      },
      (problem) => {
        // Another server has taken its place: its own page asks for its token.
        if (problem.status === 401 && isKnown) location.reload();
        setService((last) => ({ ...last, problem }));
      },
    );
    return () => following.current.stop();
  }, []);
  return { ...service, askNow: () => following.current?.now() };
}

function Connection({ problem, askNow }) {
  if (!problem) return null;
  return html`<div class="banner" role="alert">
    <p>
      <strong>${problem.status ? problem.title : "No connection"}</strong>
      ${" "}${problem.status ? problem.message : "The service does not answer."} What is shown is what was last
      known; this page keeps trying.
    </p>
    <button type="button" onClick=${askNow}>Try now</button>
  </div>`;
}

function App() {
  const { chosen, view, query } = useRoute();
  const { state, problem, memory, askNow } = useService();
  const [shown, setShown] = useState(null);
  const version = state?.revision ?? null;
  const newest = useAnswer(view && !chosen && version !== null ? "computations?limit=1" : null, version);
  const id = chosen ?? newest.data?.computations[0]?.id ?? null;
  const main = useRef(null);
  const first = useRef(true);

  useEffect(() => {
    // After a choice the reader stays there; an opened page begins at the top.
    if (!first.current) main.current?.focus({ preventScroll: matchMedia("(min-width: 900px)").matches });
    first.current = false;
  }, [chosen]);

  useEffect(() => {
    const { chunks, state: now } = shown ?? {};
    const progress = now === "running" ? `${percent(chunks.finished, chunks.total)} · ` : now ? `${now} · ` : "";
    document.title = id && shown ? `${progress}${title(shown)}` : "dask_mars";
  }, [id, shown]);

  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), main.current.focus())}>
      Skip to what is shown
    </a>
    <header class="top">
      <a class="brand" href="#/"><img src="icon.svg" alt="" width="22" height="22" />dask_mars</a>
      <${Strip} state=${state} memory=${memory} lost=${problem !== null} />
    </header>
    <${Connection} problem=${problem} askNow=${askNow} />
    <div class=${id ? "panes one" : "panes"}>
      <${Computations} version=${version} counts=${state?.counts} selected=${id} query=${query} can=${state?.can} />
      <main id="main" tabindex="-1" ref=${main}>
        ${id
          ? html`<${Computation}
              key=${id}
              id=${id}
              view=${view}
              query=${query}
              version=${version}
              state=${state}
              onShown=${setShown}
              askNow=${askNow}
            />`
          : html`<${Workers} state=${state} />`}
      </main>
    </div>
    <footer>${state && html`dask_mars ${state.version} · ${plural(state.workers.length, "worker")}`}</footer>
  `;
}

render(html`<${App} />`, document.getElementById("page"));
