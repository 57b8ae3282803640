// Keeps the page up to date: one long poll for the whole page, and none while it is hidden.

import { useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { ask, serviceNow } from "./api.js";

export const settings = { pauseMs: 1000, waitSeconds: 20, backoffMs: [1000, 2000, 4000, 8000, 15000] };

const sleep = (ms, wake) =>
  new Promise((done) => {
    const timer = setTimeout(done, ms);
    wake.then(() => (clearTimeout(timer), done()));
  });

/** Return a promise that is resolved once the page is visible. */
export function shown() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((done) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
  });
}

/**
 * Ask for the service's state again and again; return a function that ends it, and one that asks at once.
 *
 * Only this asks on its own. All else on the page asks when the revision has changed, so that a browser's few
 * connections to a host are never used up.
 */
export function follow(onState, onProblem) {
  let over = false;
  let revision = null;
  let failures = 0;
  let control = new AbortController();
  let hurry = () => {};
  const hide = () => document.hidden && control.abort();
  document.addEventListener("visibilitychange", hide);
  const once = async () => {
    control = new AbortController();
    const after = revision === null ? "" : `?after=${revision}&wait=${settings.waitSeconds}`;
    try {
      const state = await ask(`state${after}`, { signal: control.signal, waitSeconds: settings.waitSeconds });
      if (over) return 0;
      revision = state.revision;
      failures = 0;
      onState(state);
      return settings.pauseMs;
    } catch (problem) {
      if (over || control.signal.aborted) return 0;
      // The next server may count from the beginning.
      revision = null;
      const pause = settings.backoffMs[Math.min(failures, settings.backoffMs.length - 1)];
      failures += 1;
      onProblem(problem);
      return pause;
    }
  };
  (async () => {
    while (!over) {
      await shown();
      if (over) return;
      const pause = await once();
      if (pause) await sleep(pause, new Promise((wake) => (hurry = wake)));
    }
  })();
  const stop = () => {
    over = true;
    document.removeEventListener("visibilitychange", hide);
    control.abort();
    hurry();
  };
  return { stop, now: () => hurry() };
}

/**
 * Ask for a path, and again when `version` has changed; give the last answer meanwhile.
 *
 * Returns `{data, problem}`. One question at a time, and then a pause, or several for answers that are large.
 */
export function useAnswer(path, version, pauses = 1) {
  const [answer, setAnswer] = useState({});
  const asker = useRef(null);
  useEffect(() => {
    if (path === null) return undefined;
    const control = new AbortController();
    let busy = false;
    let again = false;
    const want = async () => {
      again = busy;
      if (busy) return;
      busy = true;
      await shown();
      try {
        const data = control.signal.aborted ? null : await ask(path, { signal: control.signal });
        if (!control.signal.aborted) setAnswer({ path, data });
      } catch (problem) {
        if (control.signal.aborted) return;
        setAnswer((last) => ({ path, data: last.path === path ? last.data : undefined, problem }));
      }
      await new Promise((done) => setTimeout(done, settings.pauseMs * pauses));
      busy = false;
      if (again && !control.signal.aborted) want();
    };
    asker.current = want;
    return () => {
      asker.current = null;
      control.abort();
    };
  }, [path]);
  useEffect(() => {
    asker.current?.();
  }, [path, version]);
  return answer.path === path ? answer : {};
}

/** Return the time by the service's clock, each second while `running`. */
export function useNow(running) {
  const [now, setNow] = useState(serviceNow);
  useEffect(() => {
    if (!running) return undefined;
    setNow(serviceNow());
    const timer = setInterval(() => document.hidden || setNow(serviceNow()), 1000);
    return () => clearInterval(timer);
  }, [running]);
  return now;
}

/** Return a number that changes when the system goes from light to dark or back: canvases are painted again. */
export function useScheme() {
  const [scheme, setScheme] = useState(0);
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const change = () => setScheme((last) => last + 1);
    dark.addEventListener("change", change);
    return () => dark.removeEventListener("change", change);
  }, []);
  return scheme;
}
